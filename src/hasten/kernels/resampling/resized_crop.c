/* Resizes a crop of an image to size × size pixels, from decoded bytes to its place in a batch.

   The filter gives the numbers of torch's kernel for uint8: weights in double precision, rounded to 16 bits; lines first
   and columns after, each sum rounded to 8 bits. Columns are summed as soon as the lines that they need are ready, so that
   lines are still in the first cache, and so are the bytes from which floats are computed.

   Sources: Pillow's Resample.c for the filter; torch's UpSampleKernel.cpp for how many bits the weights have. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { BYTES, PLANES, CHANNELS_LAST }; /* uint8 (size, size, 3), float32 (3, size, size), float32 (size, size, 3) */
enum { GROUP = 4 };                    /* new pixels of a line computed at once, and old ones read at once */
enum { LOOK = 16 };                    /* bytes read from each group of old pixels on */
enum { VECTOR = 32 };                  /* bytes of new lines whose columns are summed at once */
enum { AHEAD = 8 };                    /* lines prefetched before they are needed */

typedef struct {
    int taps;         /* old pixels summed for each new one; those beyond the filter have no weight */
    int bits;         /* weights are whole multiples of 1 / 2^bits */
    int *first;       /* of each new pixel, the first old one */
    int16_t *weights; /* of each new pixel, `taps` of them */
} Axis;

/* ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────── */

static double support_of(double scale) { return scale > 1 ? scale : 1; }

static void reach(int old, int new, int at, int *first, int *end)
{
    double scale = (double)old / new, centre = scale * (at + 0.5);
    *first = (int)(centre - support_of(scale) + 0.5);
    *end = (int)(centre + support_of(scale) + 0.5);
    if (*first < 0)
        *first = 0;
    if (*end > old)
        *end = old;
}

static int taps_of(int old, int new, int multiple)
{
    int most = 0;
    for (int at = 0; at < new; at++) {
        int first, end;
        reach(old, new, at, &first, &end);
        if (end - first > most)
            most = end - first;
    }
    return (most + multiple - 1) / multiple * multiple;
}

/* Fill an axis whose `taps` are known. shares: memory for new × taps. */
static void weigh(Axis *axis, int old, int new, int mirrored, double *shares)
{
    double scale = (double)old / new, largest = 0;
    memset(shares, 0, sizeof(double) * (size_t)new *axis->taps);
    for (int at = 0; at < new; at++) {
        double *share = shares + (size_t)at * axis->taps, total = 0;
        int first, end;
        reach(old, new, at, &first, &end);
        for (int tap = 0; tap < end - first; tap++) {
            double apart = (tap + first - scale * (at + 0.5) + 0.5) / support_of(scale);
            apart = apart < 0 ? -apart : apart;
            share[tap] = apart < 1 ? 1 - apart : 0;
            total += share[tap];
        }
        for (int tap = 0; tap < end - first; tap++) {
            share[tap] /= total;
            largest = share[tap] > largest ? share[tap] : largest;
        }
        axis->first[mirrored ? new - 1 - at : at] = first;
    }
    axis->bits = 0;
    while (axis->bits < 22 && (int)(0.5 + largest * (1 << (axis->bits + 1))) < 1 << 15)
        axis->bits++;
    for (int at = 0; at < new; at++)
        for (int tap = 0; tap < axis->taps; tap++)
            axis->weights[(size_t)(mirrored ? new - 1 - at : at) * axis->taps + tap] =
                (int16_t)(0.5 + shares[(size_t)at * axis->taps + tap] * (1 << axis->bits));
}

/* ── lines and columns ─────────────────────────────────────────────────────────────────────────────────────────── */

/* Ask for what lies some lines below, of which nothing is in the caches yet. Bit by bit, while the lines above are
   summed: to ask for all of a line at once gained nothing (records/failures.md). There may be nothing there, and then
   nothing happens. */
static inline void fetch(const uint8_t *from, int64_t below)
{
    __builtin_prefetch((const void *)((intptr_t)from + below));
}

#ifdef __AVX2__

/* Two weights, side by side, for every pair of words. Straight from memory, without a detour through a register. */
static inline __m256i pair_at(const int16_t *weights)
{
    return _mm256_castps_si256(_mm256_broadcast_ss((const float *)weights));
}

/* Red, green, blue and 0 of one new pixel, in two lines at once. */
static inline __m256i pixel_of(const uint8_t *upper, const uint8_t *lower, const int16_t *weights, int taps, __m256i sum)
{
    const __m256i near = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i far = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    for (int tap = 0; tap < taps; tap += GROUP) {
        __m256i old = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(upper + 3 * tap))),
            _mm_loadu_si128((const __m128i *)(lower + 3 * tap)), 1);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(old, near), pair_at(weights + tap)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(old, far), pair_at(weights + tap + 2)));
    }
    return sum;
}

static inline void lines_by(int taps, const Axis *axis, int size, const uint8_t *const from[2], int64_t below,
                            uint8_t *const to[2])
{
    const __m256i half = _mm256_set1_epi32(1 << (axis->bits - 1)), bits = _mm256_set1_epi32(axis->bits);
    const __m256i without_fourth = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    for (int at = 0; at < size; at += GROUP) {
        __m256i made[GROUP];
        fetch(from[0] + 3 * axis->first[at], below);
        fetch(from[1] + 3 * axis->first[at], below);
        for (int place = 0; place < GROUP; place++) {
            int first = 3 * axis->first[at + place];
            const int16_t *weights = axis->weights + (size_t)(at + place) * taps;
            made[place] = _mm256_srav_epi32(pixel_of(from[0] + first, from[1] + first, weights, taps, half), bits);
        }
        __m256i bytes =
            _mm256_packus_epi16(_mm256_packs_epi32(made[0], made[1]), _mm256_packs_epi32(made[2], made[3]));
        bytes = _mm256_shuffle_epi8(bytes, without_fourth);
        _mm_storeu_si128((__m128i *)(to[0] + 3 * at), _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(to[1] + 3 * at), _mm256_extracti128_si256(bytes, 1));
    }
}

/* Two lines of old pixels to two of new ones. below: bytes to where those lie that are needed some lines later. */
static void filter_lines(const Axis *axis, int size, const uint8_t *const from[2], int64_t below, uint8_t *const to[2])
{
    if (axis->taps == GROUP) /* nearly always; the compiler unrolls a known number */
        lines_by(GROUP, axis, size, from, below, to);
    else
        lines_by(axis->taps, axis, size, from, below, to);
}

static void filter_columns(const Axis *axis, int at, int count, const uint8_t *const *lines, uint8_t *restrict to)
{
    const __m256i half = _mm256_set1_epi32(1 << (axis->bits - 1)), bits = _mm256_set1_epi32(axis->bits);
    const __m256i zero = _mm256_setzero_si256();
    for (int byte = 0; byte < count; byte += VECTOR) {
        __m256i sums[4] = {half, half, half, half};
        for (int tap = 0; tap < axis->taps; tap += 2) {
            const __m256i weights = pair_at(axis->weights + (size_t)at * axis->taps + tap);
            const __m256i one = _mm256_loadu_si256((const __m256i *)(lines[tap] + byte));
            const __m256i next = _mm256_loadu_si256((const __m256i *)(lines[tap + 1] + byte));
            const __m256i low = _mm256_unpacklo_epi8(one, next), high = _mm256_unpackhi_epi8(one, next);
            sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
            sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
            sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
            sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
        }
        for (int part = 0; part < 4; part++)
            sums[part] = _mm256_srav_epi32(sums[part], bits);
        _mm256_storeu_si256((__m256i *)(to + byte), _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]),
                                                                        _mm256_packs_epi32(sums[2], sums[3])));
    }
}

#else

static uint8_t rounded(int sum, int bits)
{
    sum = (sum + (1 << (bits - 1))) >> bits;
    return sum > 255 ? 255 : (uint8_t)sum;
}

static void filter_lines(const Axis *axis, int size, const uint8_t *const from[2], int64_t below, uint8_t *const to[2])
{
    for (int line = 0; line < 2; line++)
        for (int at = 0; at < size; at++) {
            const uint8_t *old = from[line] + 3 * axis->first[at];
            fetch(old, below);
            int red = 0, green = 0, blue = 0;
            for (int tap = 0; tap < axis->taps; tap++) {
                int weight = axis->weights[(size_t)at * axis->taps + tap];
                red += weight * old[3 * tap];
                green += weight * old[3 * tap + 1];
                blue += weight * old[3 * tap + 2];
            }
            to[line][3 * at] = rounded(red, axis->bits);
            to[line][3 * at + 1] = rounded(green, axis->bits);
            to[line][3 * at + 2] = rounded(blue, axis->bits);
        }
}

static void filter_columns(const Axis *axis, int at, int count, const uint8_t *const *lines, uint8_t *restrict to)
{
    for (int byte = 0; byte < count; byte++) {
        int sum = 0;
        for (int tap = 0; tap < axis->taps; tap++)
            sum += axis->weights[(size_t)at * axis->taps + tap] * lines[tap][byte];
        to[byte] = rounded(sum, axis->bits);
    }
}

#endif

/* Copy a line to the batch past the caches, where it can be: a batch is larger than they are, and to write there what
   is not read soon fetches the memory first and drives out what is needed. from: aligned to 32 bytes. */
static void put_line(float *to, const float *from, int count)
{
#ifdef __AVX2__
    if ((uintptr_t)to % 32 == 0 && count % 8 == 0) {
        for (int at = 0; at < count; at += 8)
            _mm256_stream_ps(to + at, _mm256_load_ps(from + at));
        return;
    }
#endif
    memcpy(to, from, sizeof(float) * count);
}

/* One line of new pixels to its place in the batch. line: room for three floats a pixel. */
static void put(int layout, const uint8_t *made, int y, int size, const float *scale, const float *offset,
                float *restrict line, void *out)
{
    if (layout == BYTES)
        memcpy((uint8_t *)out + (size_t)y * size * 3, made, (size_t)size * 3);
    else if (layout == PLANES)
        for (int colour = 0; colour < 3; colour++) {
            float factor = scale[colour], term = offset[colour];
            for (int x = 0; x < size; x++)
                line[x] = made[3 * x + colour] * factor + term;
            put_line((float *)out + ((size_t)colour * size + y) * size, line, size);
        }
    else {
        for (int number = 0; number < size * 3; number++)
            line[number] = made[number] * scale[number] + offset[number];
        put_line((float *)out + (size_t)y * size * 3, line, size * 3);
    }
}

/* ── the operator ──────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const uint8_t *pixels; /* of the box: its first */
    const uint8_t *end;    /* behind the image's last byte */
    int64_t stride;        /* bytes from one line to the next */
    int height, width;     /* of the box */
} Part;

/* A line of the part, from which all that is looked at may be: where that ends behind the picture, a copy. */
static const uint8_t *line_of(const Part *part, int line, size_t looked_at, uint8_t *copy)
{
    const uint8_t *found = part->pixels + line * part->stride;
    if ((size_t)(part->end - found) >= looked_at)
        return found;
    return memcpy(copy, found, (size_t)part->width * 3);
}

/* pixels: uint8, `stride` bytes a line, of which box_height lines and box_width pixels of three bytes are shown; bytes:
   how many may be looked at from there on. scale, offset: three each, for floats. Returns 1 when there is no memory. */
int hasten_resized_crop(const uint8_t *pixels, int64_t bytes, int64_t stride, int box_height, int box_width, int mirrored,
                        int size, int layout, const float *scale, const float *offset, void *out)
{
    Part part = {pixels, pixels + bytes, stride, box_height, box_width};
    Axis across = {.taps = taps_of(box_width, size, GROUP)}, down = {.taps = taps_of(box_height, size, 2)};
    size_t news = ((size_t)size + GROUP - 1) / GROUP * GROUP, ring = down.taps + 2;
    size_t line_bytes = news * 3 + VECTOR;
    size_t looked_at = ((size_t)box_width + across.taps) * 3 + LOOK;
    size_t taps = across.taps > down.taps ? across.taps : down.taps;
    size_t floats = (size_t)(size * 3 + 7) / 8 * 8; /* whole vectors, so that what follows is aligned too */
    float *line = malloc(32 + sizeof(float) * floats + sizeof(double) * news * taps + sizeof(void *) * down.taps +
                         sizeof(int) * 2 * news + sizeof(int16_t) * news * (across.taps + down.taps) +
                         (ring + 1) * line_bytes + 2 * looked_at);
    if (!line)
        return 1;
    float *aligned = (float *)(((uintptr_t)line + 31) / 32 * 32);
    double *shares = (double *)(aligned + floats);
    const uint8_t **lines = (const uint8_t **)(shares + news * taps);
    across.first = (int *)(lines + down.taps);
    down.first = across.first + news;
    across.weights = (int16_t *)(down.first + news);
    down.weights = across.weights + news * across.taps;
    uint8_t *kept = (uint8_t *)(down.weights + news * down.taps), *made = kept + ring * line_bytes;
    uint8_t *copies[2] = {made + line_bytes, made + line_bytes + looked_at};

    memset(across.first, 0, sizeof(int) * news); /* those that fill up the last group look at the first pixel */
    memset(across.weights, 0, sizeof(int16_t) * news * across.taps);
    memset(kept, 0, (ring + 1) * line_bytes + 2 * looked_at);
    weigh(&across, box_width, size, mirrored, shares);
    weigh(&down, box_height, size, 0, shares);

    for (int y = 0, filtered = 0; y < size; y++) {
        int end = down.first[y] + down.taps < box_height ? down.first[y] + down.taps : box_height;
        for (; filtered < end; filtered += 2) {
            int last = filtered + 1 < box_height ? filtered + 1 : filtered;
            const uint8_t *from[2] = {line_of(&part, filtered, looked_at, copies[0]),
                                      line_of(&part, last, looked_at, copies[1])};
            uint8_t *to[2] = {kept + filtered % ring * line_bytes, kept + (filtered + 1) % ring * line_bytes};
            filter_lines(&across, size, from, AHEAD * stride, to);
        }
        for (int tap = 0; tap < down.taps; tap++)
            lines[tap] = kept + (down.first[y] + tap) % ring * line_bytes;
        filter_columns(&down, y, size * 3, lines, made);
        put(layout, made, y, size, scale, offset, aligned, out);
    }
#ifdef __AVX2__
    _mm_sfence(); /* stores past the caches are in no order with others, and another thread may read the batch next */
#endif
    free(line);
    return 0;
}

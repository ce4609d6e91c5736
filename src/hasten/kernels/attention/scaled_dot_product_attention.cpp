// softmax(Q Kᵀ · scale) V in bfloat16 and its gradients; scaled_dot_product_attention.py describes them.
//
// Products use AVX512-BF16, which multiplies pairs of bfloat16 numbers and sums them in float32. One thread takes a head.
#include "matrix_products.h"

#include <algorithm>
#include <memory>

using namespace hasten;

namespace {

struct Shape {
    int64_t queries, keys, width;
    bool causal;
    float scale;
};

constexpr int64_t ROWS_AT_ONCE = 48, QUERIES_AT_ONCE = 512, SCORES_AT_ONCE = 40 << 10;

template <class Number> using Room = std::unique_ptr<Number[]>;
template <class Number> Room<Number> room(int64_t count) { return Room<Number>(new Number[count]); }

// A matrix of one head with contiguous columns.
struct Matrix {
    bfloat16 *at;
    int64_t row;
    Left left(int64_t from) const { return {at + from * row, row, 2}; }
};

// For one query: the score with the greatest weight, and the factor that makes its weights sum to 1.
struct Sum {
    float most, part;
};

// exp((score - most) · scale): the difference comes first, so that it is exactly 0 for the greatest.
inline floats share_of(floats scores, floats most, float scale) { return exp_below_88((scores - most) * scale); }

// The weights before that factor, and zeros behind them up to `padded`.
inline Sum share(const float *scores, int64_t columns, int64_t padded, float scale, bfloat16 *shares) {
    float sign = scale < 0 ? -1 : 1;
    auto signed_ = [sign](floats x) { return x * sign; };
    auto greater = [](auto a, auto b) { return b > a ? b : a; };
    float most = sign * fold(columns, -__builtin_inff(), greater, signed_, -sign * __builtin_inff(), scores);
    floats total = {};
    along(columns, [&](int64_t at, auto lanes) {
        floats found = share_of(lanes.load(scores + at), all(most), scale);
        total += lanes.kept(found);
        lanes.store(shares + at, found);
    });
    memset(shares + columns, 0, (padded - columns) * sizeof *shares);
    return {most, 1 / sum(total)};
}

// Memory of one thread, for one head after the other.
struct Forward {
    const Shape &shape;
    int64_t keys = up(shape.keys), width = up(shape.width);
    int64_t rows = std::clamp(SCORES_AT_ONCE / keys / TILE_ROWS * TILE_ROWS, TILE_ROWS, ROWS_AT_ONCE);
    Room<uint32_t> turned = room<uint32_t>(shape.width / 2 * keys), values = room<uint32_t>(keys / 2 * width);
    Room<float> scores = room<float>(rows * keys), found = room<float>(rows * width);
    Room<bfloat16> shares = room<bfloat16>(rows * keys);

    void of_head(Matrix query, Matrix key, Matrix value, Matrix to, Sum *sums);
};

void Forward::of_head(Matrix query, Matrix key, Matrix value, Matrix to, Sum *sums) {
    turn(key.at, key.row, shape.keys, shape.width, turned.get());
    pair(value.at, value.row, shape.keys, shape.width, values.get());
    for (int64_t first = 0; first < shape.queries; first += rows) {
        int64_t count = std::min(rows, shape.queries - first);
        int64_t seen = shape.causal ? std::min(first + count, shape.keys) : shape.keys;
        multiply(count, up(seen), shape.width / 2, query.left(first), turned.get(), keys, scores.get(), keys, false);
        for (int64_t row = 0; row < count; row++) {
            int64_t columns = shape.causal ? std::min(first + row + 1, seen) : seen, at = row * keys;
            sums[first + row] = share(scores.get() + at, columns, up(seen), shape.scale, shares.get() + at);
        }
        multiply(count, width, up(seen) / 2, {shares.get(), keys, 2}, values.get(), width, found.get(), width, false);
        for (int64_t row = 0; row < count; row++) {
            float part = sums[first + row].part;
            map(shape.width, to.at + (first + row) * to.row, [part](floats x) { return x * part; },
                found.get() + row * width);
        }
    }
}

// The queries of a head and their gradients, as right operands of products.
struct Queries {
    const Shape &shape;
    int64_t count = up(shape.queries), width = up(shape.width);
    Room<uint32_t> turned = room<uint32_t>(shape.width / 2 * count), paired = room<uint32_t>(count / 2 * width);
    Room<uint32_t> gradients_turned = room<uint32_t>(shape.width / 2 * count);
    Room<uint32_t> gradients_paired = room<uint32_t>(count / 2 * width);
    Room<float> most = room<float>(count), part = room<float>(count), together = room<float>(count); // 0 behind the last
    Room<float> gradient = room<float>(count * width);

    void take(Matrix query, Matrix y, Matrix of_y, const Sum *sums) {
        turn(query.at, query.row, shape.queries, shape.width, turned.get());
        pair(query.at, query.row, shape.queries, shape.width, paired.get());
        turn(of_y.at, of_y.row, shape.queries, shape.width, gradients_turned.get());
        pair(of_y.at, of_y.row, shape.queries, shape.width, gradients_paired.get());
        memset(gradient.get(), 0, count * width * sizeof(float));
        auto product = [](floats a, floats b) { return a * b; };
        for (int64_t row = 0; row < count; row++) {
            bool there = row < shape.queries;
            const bfloat16 *one = y.at + row * y.row, *other = of_y.at + row * of_y.row;
            most[row] = there ? sums[row].most : 0;
            part[row] = there ? sums[row].part : 0;
            together[row] = there ? sum(shape.width, product, 0.0f, one, other) : 0;
        }
    }
};

// The weights of some keys for some queries, by keys, and the gradients of their scores.
struct Part {
    static constexpr int64_t SIZE = ROWS_AT_ONCE * QUERIES_AT_ONCE;
    Room<float> scores = room<float>(SIZE), of_shares = room<float>(SIZE);
    Room<bfloat16> shares = room<bfloat16>(SIZE), gradients = room<bfloat16>(SIZE);
    Room<uint32_t> paired = room<uint32_t>(SIZE / 2); // the gradients, by pairs of keys

    void find(const Shape &shape, const Queries &queries, Matrix key, Matrix value, int64_t first, int64_t keys,
              int64_t from, int64_t count) {
        multiply(keys, count, shape.width / 2, key.left(first), queries.turned.get() + from, queries.count, scores.get(),
                 QUERIES_AT_ONCE, false);
        multiply(keys, count, shape.width / 2, value.left(first), queries.gradients_turned.get() + from, queries.count,
                 of_shares.get(), QUERIES_AT_ONCE, false);
        for (int64_t row = 0; row < keys; row++)
            for (int64_t at = 0; at < count; at += WIDTH) {
                int64_t here = row * QUERIES_AT_ONCE + at;
                floats share = share_of(load(scores.get() + here), load(&queries.most[from + at]), shape.scale);
                share *= load(&queries.part[from + at]);
                if (shape.causal)
                    share = lanes() + (int32_t)(from + at - first - row) < 0 ? floats{} : share;
                store(shares.get() + here, share);
                floats gradient = share * (load(of_shares.get() + here) - load(&queries.together[from + at]));
                store(gradients.get() + here, gradient * shape.scale);
            }
        for (int64_t row = 0; row < keys; row += 2)
            for (int64_t at = 0; at < count; at += WIDTH) {
                const bfloat16 *here = gradients.get() + row * QUERIES_AT_ONCE + at;
                floats next = row + 1 < keys ? load(here + QUERIES_AT_ONCE) : floats{};
                words both = (words)load(here) >> 16 | (words)next;
                memcpy(paired.get() + row / 2 * QUERIES_AT_ONCE + at, &both, sizeof both);
            }
    }
};

void keep(Matrix to, int64_t first, int64_t rows, int64_t columns, const float *found, int64_t found_row) {
    for (int64_t row = 0; row < rows; row++)
        map(columns, to.at + (first + row) * to.row, [](floats x) { return x; }, found + row * found_row);
}

// Memory of one thread, for one head after the other.
struct Backward {
    const Shape &shape;
    int64_t width = up(shape.width);
    Queries queries = {shape};
    Part part;
    Room<float> of_key = room<float>(ROWS_AT_ONCE * width), of_value = room<float>(ROWS_AT_ONCE * width);
    Room<uint32_t> keys = room<uint32_t>(ROWS_AT_ONCE / 2 * width);

    void of_head(Matrix key, Matrix value, Matrix to_query, Matrix to_key, Matrix to_value);
};

// For the queries given before.
void Backward::of_head(Matrix key, Matrix value, Matrix to_query, Matrix to_key, Matrix to_value) {
    for (int64_t first = 0; first < shape.keys; first += ROWS_AT_ONCE) {
        int64_t rows = std::min(ROWS_AT_ONCE, shape.keys - first);
        pair(key.at + first * key.row, key.row, rows, shape.width, keys.get());
        memset(of_key.get(), 0, rows * width * sizeof(float));
        memset(of_value.get(), 0, rows * width * sizeof(float));
        int64_t from = shape.causal ? std::min(first, queries.count) / WIDTH * WIDTH : 0;
        for (int64_t count; from < queries.count; from += count) {
            count = std::min(QUERIES_AT_ONCE, queries.count - from);
            part.find(shape, queries, key, value, first, rows, from, count);
            multiply(rows, width, count / 2, {part.shares.get(), QUERIES_AT_ONCE, 2},
                     queries.gradients_paired.get() + from / 2 * width, width, of_value.get(), width, true);
            multiply(rows, width, count / 2, {part.gradients.get(), QUERIES_AT_ONCE, 2},
                     queries.paired.get() + from / 2 * width, width, of_key.get(), width, true);
            multiply(count, width, (rows + 1) / 2, {(bfloat16 *)part.paired.get(), 2, 2 * QUERIES_AT_ONCE}, keys.get(),
                     width, queries.gradient.get() + from * width, width, true);
        }
        keep(to_value, first, rows, shape.width, of_value.get(), width);
        keep(to_key, first, rows, shape.width, of_key.get(), width);
    }
    keep(to_query, 0, shape.queries, shape.width, queries.gradient.get(), width);
}

} // namespace

// Whether this processor has AVX512-BF16, and not AMX, with which torch is faster.
extern "C" int64_t there() { return THERE; }

// strides: of batches, heads and rows, for each tensor in order.
struct Heads {
    bfloat16 *at;
    const int64_t *strides;
    Matrix of(int64_t batch, int64_t head) const { return {at + batch * strides[0] + head * strides[1], strides[2]}; }
};

#define SHAPE                                                                                                          \
    int64_t batches, int64_t heads, int64_t queries, int64_t keys, int64_t width, int64_t causal, float scale

extern "C" void forward_bfloat16(bfloat16 *query, bfloat16 *key, bfloat16 *value, bfloat16 *to, float *sums,
                                 const int64_t *strides, SHAPE) {
    Shape shape = {queries, keys, width, causal != 0, scale};
    Heads q = {query, strides}, k = {key, strides + 3}, v = {value, strides + 6}, y = {to, strides + 9};
#pragma omp parallel
    {
        Forward forward = {shape};
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < batches * heads; at++) {
            int64_t b = at / heads, h = at % heads;
            forward.of_head(q.of(b, h), k.of(b, h), v.of(b, h), y.of(b, h), (Sum *)sums + at * queries);
        }
    }
}

extern "C" void backward_bfloat16(bfloat16 *query, bfloat16 *key, bfloat16 *value, bfloat16 *of, bfloat16 *gradient,
                                  bfloat16 *to_query, bfloat16 *to_key, bfloat16 *to_value, const float *sums,
                                  const int64_t *strides, SHAPE) {
    Shape shape = {queries, keys, width, causal != 0, scale};
    Heads q = {query, strides}, k = {key, strides + 3}, v = {value, strides + 6}, y = {of, strides + 9};
    Heads g = {gradient, strides + 12}, dq = {to_query, strides + 15}, dk = {to_key, strides + 18};
    Heads dv = {to_value, strides + 21};
#pragma omp parallel
    {
        Backward backward = {shape};
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < batches * heads; at++) {
            int64_t b = at / heads, h = at % heads;
            backward.queries.take(q.of(b, h), y.of(b, h), g.of(b, h), (const Sum *)sums + at * queries);
            backward.of_head(k.of(b, h), v.of(b, h), dq.of(b, h), dk.of(b, h), dv.of(b, h));
        }
    }
}

// GELU in CUDA C++: one pass over memory forward, one backward; gelu.py describes the formulas.
//
// Nothing calls it yet: tests compile it and compare its formulas with torch's on a processor. It takes float32, bfloat16
// and float16, computes in float32, and moves 16 bytes at a time where all addresses are multiples of 16. The functions at
// the end take dense memory of the current device in one order. They return CUDA's error, 0 for none, and do not wait.
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace hasten {

constexpr int THREADS = 256; // in a block
constexpr float TWICE_ROOT = 1.5957691216057308f; // 2 √(2/π)
constexpr float CUBE = 0.044715f;
constexpr float FLAT = 10.0f; // beyond this the derivative is 0 or 1
constexpr float PEAK = 0.3989422804f; // φ(0)

struct Exact {
    __host__ __device__ float operator()(float x) const { return x * normcdff(x); }
};

struct ExactBackward {
    __host__ __device__ float operator()(float gradient, float x) const {
        float density = PEAK * expf(-0.5f * x * x);
        return gradient * (normcdff(x) + (density > 0.0f ? x * density : 0.0f)); // avoids 0 · ∞
    }
};

// ½ (1 + tanh u) is 1 / (1 + e^(-2u)).
struct ByTanh {
    __host__ __device__ float operator()(float x) const {
        return x / (1.0f + expf(-TWICE_ROOT * x * (1.0f + CUBE * x * x)));
    }
};

struct ByTanhBackward {
    __host__ __device__ float operator()(float gradient, float x) const {
        x = x > FLAT ? FLAT : x < -FLAT ? -FLAT : x; // NaN stays
        float square = x * x;
        float rest = expf(-TWICE_ROOT * x * (1.0f + CUBE * square));
        float share = 1.0f / (1.0f + rest); // and 1 - share is rest * share, without cancellation
        float inner = TWICE_ROOT * (1.0f + 3.0f * CUBE * square);
        return gradient * (share + x * (share * rest) * share * inner);
    }
};

__device__ inline float wide(float number) { return number; }
__device__ inline float wide(__nv_bfloat16 number) { return __bfloat162float(number); }
__device__ inline float wide(__half number) { return __half2float(number); }

__device__ inline void put(float *to, float number) { *to = number; }
__device__ inline void put(__nv_bfloat16 *to, float number) { *to = __float2bfloat16_rn(number); }
__device__ inline void put(__half *to, float number) { *to = __float2half_rn(number); }

template <class Number, int COUNT> struct alignas(COUNT * sizeof(Number)) Pack {
    Number of[COUNT];
};

// A thread reads and writes COUNT neighbours at once; the last thread takes the rest.
template <int COUNT, class Compute, class Number, class... In>
__global__ void __launch_bounds__(THREADS) each(int64_t count, Number *to, Compute compute, const In *...from) {
    int64_t at = (int64_t(blockIdx.x) * THREADS + threadIdx.x) * COUNT;
    if (at + COUNT <= count) {
        Pack<Number, COUNT> made;
        [&](auto... given) {
            for (int i = 0; i < COUNT; i++)
                put(made.of + i, compute(wide(given.of[i])...));
        }(*reinterpret_cast<const Pack<Number, COUNT> *>(from + at)...);
        *reinterpret_cast<Pack<Number, COUNT> *>(to + at) = made;
    } else {
        for (; at < count; at++)
            put(to + at, compute(wide(from[at])...));
    }
}

template <int COUNT, class Compute, class Number, class... In>
int launch(cudaStream_t stream, int64_t count, Number *to, Compute compute, const In *...from) {
    constexpr int64_t TAKEN = int64_t(COUNT) * THREADS;
    if (count) // CUDA refuses an empty grid
        each<COUNT><<<unsigned((count + TAKEN - 1) / TAKEN), THREADS, 0, stream>>>(count, to, compute, from...);
    return cudaGetLastError();
}

template <class Compute, class Number, class... In>
int over_all(cudaStream_t stream, int64_t count, Number *to, Compute compute, const In *...from) {
    constexpr int AT_ONCE = 16 / sizeof(Number);
    bool aligned = (((uintptr_t)to | ... | (uintptr_t)from) % 16) == 0;
    return aligned ? launch<AT_ONCE>(stream, count, to, compute, from...)
                   : launch<1>(stream, count, to, compute, from...);
}

} // namespace hasten

#define FORM(number, name, form, compute)                                                                              \
    extern "C" int form##_##name(const number *x, number *y, int64_t count, cudaStream_t stream) {                     \
        return hasten::over_all(stream, count, y, hasten::compute(), x);                                               \
    }                                                                                                                  \
    extern "C" int form##_backward_##name(const number *gradient, const number *x, number *to, int64_t count,          \
                                          cudaStream_t stream) {                                                       \
        return hasten::over_all(stream, count, to, hasten::compute##Backward(), gradient, x);                          \
    }

FORM(float, float32, exact, Exact)
FORM(float, float32, tanh, ByTanh)
FORM(__nv_bfloat16, bfloat16, exact, Exact)
FORM(__nv_bfloat16, bfloat16, tanh, ByTanh)
FORM(__half, float16, exact, Exact)
FORM(__half, float16, tanh, ByTanh)

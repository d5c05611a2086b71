// One block per (row, chunk of 8192 elements); the whole chunk stays in registers between its maximum and its sums, so
// that memory is read once. Whole, unmasked, aligned chunks take 16-byte loads and no guards; every other chunk is
// guarded element by element. Equal to the Triton kernel in its layout of results.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "topk_stream.h"

namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 8192;
constexpr int kGroup = 128;
constexpr int kGroups = kChunk / kGroup;
constexpr int kPerThread = kChunk / kThreads;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kMaxFloat = 3.4028234663852886e38f;

// Elements of one 16-byte load as float32.
template <typename T>
struct Wide;

template <>
struct Wide<float> {
  static constexpr int kCount = 4;
  static __device__ __forceinline__ void unpack(uint4 raw, float* x) {
    x[0] = __uint_as_float(raw.x);
    x[1] = __uint_as_float(raw.y);
    x[2] = __uint_as_float(raw.z);
    x[3] = __uint_as_float(raw.w);
  }
};

template <>
struct Wide<__nv_bfloat16> {
  static constexpr int kCount = 8;
  static __device__ __forceinline__ void unpack(uint4 raw, float* x) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
};

template <>
struct Wide<__half> {
  static constexpr int kCount = 8;
  static __device__ __forceinline__ void unpack(uint4 raw, float* x) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
};

// Maximum over the block; every thread gets it. fmaxf drops NaN.
__device__ __forceinline__ float block_max(float value, float* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) value = fmaxf(value, shared[w]);
  return value;
}

// Two sums over the block in a fixed order; every thread gets them.
__device__ __forceinline__ float2 block_sums(float a, float b, float2* shared) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    a += __shfl_xor_sync(~0u, a, step);
    b += __shfl_xor_sync(~0u, b, step);
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = make_float2(a, b);
  __syncthreads();
  float2 total = shared[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) {
    total.x += shared[w].x;
    total.y += shared[w].y;
  }
  return total;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Maximum of a 128-element group, whose kLanes threads are neighbours in a warp; stored by the first of them.
template <int kLanes>
__device__ __forceinline__ float group_max(float own, int load, float* maxima) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, step));
  if (threadIdx.x % kLanes == 0) maxima[(load * kThreads + threadIdx.x) / kLanes] = own;
  return own;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    topk_stream_kernel(const T* logits, int64_t cols, int64_t row_stride, const int32_t* allowed, int64_t allowed_stride,
                       float* partials, float* maxima) {
  constexpr int kWide = Wide<T>::kCount;
  constexpr int kLoads = kPerThread / kWide;
  constexpr int kLanes = kGroup / kWide;
  __shared__ float maxima_of_warps[2][kWarps];  // one for each path: a block may go through both
  __shared__ float2 sums_of_warps[2][kWarps];
  const int64_t row = blockIdx.y;
  const int chunk = blockIdx.x;
  const int64_t begin = static_cast<int64_t>(chunk) * kChunk;
  const T* const source = logits + row * row_stride + begin;
  const int32_t* const words = allowed == nullptr ? nullptr : allowed + row * allowed_stride + begin / 32;
  float* const partial = partials + (row * gridDim.x + chunk) * 4;
  float* const group_maxima = maxima + (row * gridDim.x + chunk) * kGroups;
  const int64_t left = cols - begin;

  bool plain = left >= kChunk && reinterpret_cast<uintptr_t>(source) % 16 == 0;
  if (plain && words != nullptr) {
    int32_t all = -1;
#pragma unroll
    for (int w = 0; w < kChunk / 32; w += kThreads) all &= words[w + threadIdx.x];
    plain = __syncthreads_and(all == -1);
  }
  if (plain) {
    uint4 raw[kLoads];
    const uint4* const wide = reinterpret_cast<const uint4*>(source);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) raw[j] = __ldcs(wide + j * kThreads + threadIdx.x);
    float x[kPerThread];
    float own_top = -INFINITY;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      Wide<T>::unpack(raw[j], x + j * kWide);
      float own = x[j * kWide];
#pragma unroll
      for (int i = 1; i < kWide; ++i) own = fmaxf(own, x[j * kWide + i]);
      own_top = fmaxf(own_top, group_max<kLanes>(own, j, group_maxima));
    }
    const float top = block_max(own_top, maxima_of_warps[0]);
    float sum = 0.0f;
    float weighted = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const float z = (x[i] - top) * kLog2E;  // not one FMA: the rounding of top * log2 e would shift every term
      const float e = exp2_fast(z);
      sum += e;
      weighted = fmaf(e, z, weighted);
    }
    const float2 total = block_sums(sum, weighted, sums_of_warps[0]);
    // The maximum alone adds 1. Less, or NaN, means that a NaN, an infinity or an overflow went through.
    if (total.x >= 0.5f && total.y == total.y) {
      if (threadIdx.x == 0) *reinterpret_cast<float4*>(partial) = make_float4(top, total.x, total.y, 0.0f);
      return;
    }
  }

  // Guarded: reads the chunk twice (the second time from the cache) instead of holding it in registers.
  bool nan = false;
  const auto guarded = [&](int j, int i) {
    const int at = (j * kThreads + threadIdx.x) * kWide + i;
    bool inside = at < left;
    if (inside && words != nullptr) inside = (static_cast<uint32_t>(words[at / 32]) >> (at % 32)) & 1u;
    const float value = inside ? static_cast<float>(source[at]) : -INFINITY;
    if (value == value) return value;
    nan = true;
    return -INFINITY;
  };
  float own_top = -INFINITY;
#pragma unroll 1
  for (int j = 0; j < kLoads; ++j) {
    float own = -INFINITY;
#pragma unroll
    for (int i = 0; i < kWide; ++i) own = fmaxf(own, guarded(j, i));
    own_top = fmaxf(own_top, group_max<kLanes>(own, j, group_maxima));
  }
  const float top = block_max(own_top, maxima_of_warps[1]);
  const float finite_top = fminf(fmaxf(top, -kMaxFloat), kMaxFloat);
  float sum = 0.0f;
  float weighted = 0.0f;
#pragma unroll 1
  for (int j = 0; j < kLoads; ++j) {
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      const float z = (fminf(guarded(j, i), kMaxFloat) - finite_top) * kLog2E;
      const float e = exp2_fast(z);
      sum += e;
      weighted += e > 0.0f ? e * z : 0.0f;
    }
  }
  const float2 total = block_sums(sum, weighted, sums_of_warps[1]);
  const int any_nan = __syncthreads_or(nan);
  if (threadIdx.x == 0) *reinterpret_cast<float4*>(partial) = make_float4(top, total.x, total.y, any_nan ? 1.0f : 0.0f);
}

template <typename T>
void launch(const void* logits, int64_t rows, int64_t cols, int64_t row_stride, const int32_t* allowed,
            int64_t allowed_stride, float* partials, float* maxima, cudaStream_t stream) {
  constexpr int64_t kMostRows = 65535;  // grid limit of the y axis
  const int64_t chunks = (cols + kChunk - 1) / kChunk;
  for (int64_t at = 0; at < rows; at += kMostRows) {
    const int64_t count = rows - at < kMostRows ? rows - at : kMostRows;
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(count));
    topk_stream_kernel<T><<<grid, kThreads, 0, stream>>>(
        static_cast<const T*>(logits) + at * row_stride, cols, row_stride,
        allowed == nullptr ? nullptr : allowed + at * allowed_stride, allowed_stride, partials + at * chunks * 4,
        maxima + at * chunks * kGroups);
  }
}

}  // namespace

extern "C" int ensemble_cuda_topk_stream(const void* logits, int dtype, int64_t rows, int64_t cols, int64_t row_stride,
                                         const int32_t* allowed, int64_t allowed_stride, float* partials,
                                         float* maxima, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (rows <= 0 || cols <= 0) return cudaSuccess;
  switch (dtype) {
    case 0: launch<float>(logits, rows, cols, row_stride, allowed, allowed_stride, partials, maxima, on); break;
    case 1: launch<__half>(logits, rows, cols, row_stride, allowed, allowed_stride, partials, maxima, on); break;
    case 2: launch<__nv_bfloat16>(logits, rows, cols, row_stride, allowed, allowed_stride, partials, maxima, on); break;
    default: return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

extern "C" const char* ensemble_cuda_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

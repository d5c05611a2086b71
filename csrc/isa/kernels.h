// The inner loops that exist once per instruction set, as a table of plain function pointers.
//
// The files that implement them are compiled with their own instruction-set flags. They include no standard C++
// header with inline functions: the linker could otherwise keep an AVX-512 copy of such a function for everybody.
#pragma once

#include <cstdint>

namespace ensemble {

// Sums over one chunk, in base 2 relative to `max`: t = x * kLog2E - round(max * kLog2E), at least -125.
struct ChunkSums {
  float max;       // largest element
  float sum;       // sum of 2^t
  float weighted;  // sum of 2^t * t; NaN where the chunk holds a NaN or its maximum is infinite
};

// A block of products of rows with widened weights; strides count elements.
struct Products {
  const float* x;  // [rows, inputs]
  int64_t x_stride;
  int64_t rows;
  const float* weights;  // [outputs, inputs], zeros up to a multiple of 8 inputs
  int64_t weight_stride;
  int64_t outputs;
  int64_t inputs;
  float* sums;  // [outputs, rows], with room for whole tiles of four rows
  int64_t sum_stride;
  bool add;           // to what sums holds
  const void* ahead;  // what will be read next, for prefetching only; may be null
  int64_t ahead_bytes;
};

constexpr int64_t kTileOutputs = 3;  // blocks of a multiple of so many outputs leave no narrow tiles

struct Kernels {
  const char* name;
  // Reads groups * 128 elements of each dtype (f32, f16, bf16); writes one maximum per group and the sums.
  // `ahead` is where the caller will probably read next, for prefetching only; it may equal x.
  void (*chunk[3])(const void* x, int64_t groups, const void* ahead, float* group_max, ChunkSums* sums);
  // In place over n elements, n a multiple of 16. log takes positive normal numbers only.
  void (*exp)(float* x, int64_t n);
  void (*log)(float* x, int64_t n);
  // bfloat16 [rows, count] to float32, zeros up to the stride; null where there is no such loop, like products.
  void (*widen)(const uint16_t* from, int64_t from_stride, int64_t rows, int64_t count, float* to, int64_t to_stride);
  void (*products)(const Products& job);
};

constexpr float kLog2E = 0x1.715476p+0f;
constexpr int32_t kFractionBits = 0x007fffff;
constexpr int32_t kOneBits = 0x3f800000;  // 1.0 as float32
constexpr int32_t kSqrtHalfBits = 0x3f3504f3;  // sqrt(1/2) as float32

extern const Kernels kKernelsPlain;
#if defined(ENSEMBLE_ISA_X86)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
void widen_avx2(const uint16_t* from, int64_t from_stride, int64_t rows, int64_t count, float* to, int64_t to_stride);
void products_avx2(const Products& job);
#endif
#if defined(ENSEMBLE_ISA_NEON)
extern const Kernels kKernelsNeon;
#endif

}  // namespace ensemble

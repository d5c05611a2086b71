// Plain views of tensors and the constants shared by every file of the core. No Python, no torch.
#pragma once

#include <cstdint>

namespace ensemble {

enum class Dtype : int { f32 = 0, f16 = 1, bf16 = 2 };

constexpr int64_t kGroup = 128;   // elements under one stored maximum
constexpr int64_t kChunk = 8192;  // elements under one partial sum; a fixed size keeps results batch-invariant
constexpr int64_t kChunkGroups = kChunk / kGroup;

constexpr int32_t kFlagNan = 1;    // a NaN logit was met (it counts as -inf)
constexpr int32_t kFlagEmpty = 2;  // nothing allowed is above -inf

// Logits [rows, cols] with a unit last stride; row_stride counts elements.
struct Logits {
  const void* data;
  Dtype dtype;
  int64_t rows;
  int64_t cols;
  int64_t row_stride;
};

// Bitmask [1 or rows, ceil(cols / 32)]; data == nullptr allows everything, row_stride == 0 shares one row.
struct Allowed {
  const int32_t* data = nullptr;
  int64_t row_stride = 0;

  const int32_t* row(int64_t r) const { return data == nullptr ? nullptr : data + r * row_stride; }
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t element_size(Dtype t) { return t == Dtype::f32 ? 4 : 2; }

inline const char* row_pointer(const Logits& x, int64_t r) {
  return static_cast<const char*>(x.data) + r * x.row_stride * element_size(x.dtype);
}

}  // namespace ensemble

// Scalar conversions of the two 16-bit formats to float32; both are exact.
#pragma once

#include <cstdint>
#include <cstring>

#include "types.h"

namespace ensemble {

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float bf16_to_float(uint16_t h) { return float_from_bits(uint32_t{h} << 16); }

inline float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16;
  const uint32_t exponent = (h >> 10) & 0x1f;
  const uint32_t fraction = h & 0x3ff;
  if (exponent == 0x1f) return float_from_bits(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return float_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

inline float load_element(const void* row, Dtype dtype, int64_t i) {
  switch (dtype) {
    case Dtype::f32: return static_cast<const float*>(row)[i];
    case Dtype::f16: return f16_to_float(static_cast<const uint16_t*>(row)[i]);
    default: return bf16_to_float(static_cast<const uint16_t*>(row)[i]);
  }
}

}  // namespace ensemble

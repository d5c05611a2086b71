// Portable code for every other machine; the compiler vectorises what its baseline allows.
#include <stdint.h>

#include "../core/half.h"
#include "kernels.h"

namespace ensemble {
namespace {

struct V {
  float x[16];

  static V set1(float value) {
    V r;
    for (int i = 0; i < 16; ++i) r.x[i] = value;
    return r;
  }
  static V add(V a, V b) {
    for (int i = 0; i < 16; ++i) a.x[i] += b.x[i];
    return a;
  }
  static V sub(V a, V b) {
    for (int i = 0; i < 16; ++i) a.x[i] -= b.x[i];
    return a;
  }
  static V mul(V a, V b) {
    for (int i = 0; i < 16; ++i) a.x[i] *= b.x[i];
    return a;
  }
  static V fma(V a, V b, V c) {  // not fused: a library call per lane would cost more than the whole loop
    for (int i = 0; i < 16; ++i) c.x[i] = a.x[i] * b.x[i] + c.x[i];
    return c;
  }
  static V fma_precise(V a, V b, V c) {  // large logits would lose too much to the rounding of the product
    for (int i = 0; i < 16; ++i) c.x[i] = static_cast<float>(double{a.x[i]} * b.x[i] + c.x[i]);
    return c;
  }
  static V min(V a, V b) {
    for (int i = 0; i < 16; ++i) a.x[i] = a.x[i] < b.x[i] ? a.x[i] : b.x[i];
    return a;
  }
  static V max_skip_nan(V value, V kept) {
    for (int i = 0; i < 16; ++i) kept.x[i] = value.x[i] > kept.x[i] ? value.x[i] : kept.x[i];
    return kept;
  }
  static V max_keep_nan(V bound, V value) {
    for (int i = 0; i < 16; ++i) value.x[i] = bound.x[i] > value.x[i] ? bound.x[i] : value.x[i];
    return value;
  }
  static void nearest(V x, V& bits, V& value) {
    constexpr float kToInteger = 12582912.0f;  // 1.5 * 2^23: adding it rounds and leaves the integer in the low bits
    for (int i = 0; i < 16; ++i) {
      bits.x[i] = x.x[i] + kToInteger;
      value.x[i] = bits.x[i] - kToInteger;
    }
  }
  static V scale(V p, V z) {
    for (int i = 0; i < 16; ++i) {
      uint32_t bits, exponent;
      __builtin_memcpy(&bits, &p.x[i], 4);
      __builtin_memcpy(&exponent, &z.x[i], 4);
      p.x[i] = float_from_bits(bits + (exponent << 23));
    }
    return p;
  }
  // x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)).
  static void split(V x, V& mantissa, V& exponent) {
    for (int i = 0; i < 16; ++i) {
      int32_t bits;
      __builtin_memcpy(&bits, &x.x[i], 4);
      const int32_t e = (bits - kSqrtHalfBits) >> 23;
      mantissa.x[i] = float_from_bits(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(e) << 23));
      exponent.x[i] = static_cast<float>(e);
    }
  }

  static float hmax(V v) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v.x[i] = v.x[i] > v.x[i + width] ? v.x[i] : v.x[i + width];
    }
    return v.x[0];
  }
  static float hsum(V v) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) v.x[i] += v.x[i + width];
    }
    return v.x[0];
  }

  static V load16(const float* p) {
    V r;
    __builtin_memcpy(r.x, p, sizeof r.x);
    return r;
  }
  static void store(float* p, V v) { __builtin_memcpy(p, v.x, sizeof v.x); }

  template <int kType>
  static void load32(const char* p, V& a, V& b) {
    if constexpr (kType == 0) {
      a = load16(reinterpret_cast<const float*>(p));
      b = load16(reinterpret_cast<const float*>(p) + 16);
    } else if constexpr (kType == 1) {
      for (int i = 0; i < 16; ++i) {
        a.x[i] = f16_to_float(reinterpret_cast<const uint16_t*>(p)[i]);
        b.x[i] = f16_to_float(reinterpret_cast<const uint16_t*>(p)[16 + i]);
      }
    } else {
      const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
      for (int i = 0; i < 8; ++i) {
        a.x[i] = bf16_to_float(h[2 * i]);
        a.x[8 + i] = bf16_to_float(h[2 * i + 1]);
        b.x[i] = bf16_to_float(h[16 + 2 * i]);
        b.x[8 + i] = bf16_to_float(h[16 + 2 * i + 1]);
      }
    }
  }
};

}  // namespace

#include "chunk.inl"
#include "math.inl"

const Kernels kKernelsPlain = {"plain", {chunk<0>, chunk<1>, chunk<2>}, exp_all, log_all, nullptr, nullptr};

}  // namespace ensemble

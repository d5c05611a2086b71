// Portable code for every other machine; the compiler vectorises what its baseline allows.
#include <stdint.h>

#include "../core/half.h"
#include "kernels.h"

namespace ensemble {
namespace {

struct V {
  float x[16];

  struct Integers {
    int32_t x[16];

    static Integers load(const int32_t* p) {
      Integers z;
      __builtin_memcpy(z.x, p, sizeof z.x);
      return z;
    }
    static void store(int32_t* p, Integers z) { __builtin_memcpy(p, z.x, sizeof z.x); }
  };

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
  // Of numbers at most a little above zero; may be one off where that is less than the numbers' own rounding.
  static Integers nearest(V x) {
    Integers z;
    for (int i = 0; i < 16; ++i) {
      // A NaN shows in the weighted sum and maxima that leave large numbers are summed elsewhere; any integer will do.
      const float number = x.x[i] < 0x1p30f ? x.x[i] : 0.0f;
      z.x[i] = static_cast<int32_t>(number - 0.5f);
    }
    return z;
  }
  static V fraction(Integers z) {
    V u;
    for (int i = 0; i < 16; ++i) u.x[i] = float_from_bits(static_cast<uint32_t>((z.x[i] & kFractionBits) | kOneBits));
    return u;
  }
  static V add_to_bits(V p, Integers z) {
    for (int i = 0; i < 16; ++i) p.x[i] = float_from_bits(bits_of(p.x[i]) + static_cast<uint32_t>(z.x[i]));
    return p;
  }
  static V scale(V p, V z) {
    for (int i = 0; i < 16; ++i) {
      p.x[i] = float_from_bits(bits_of(p.x[i]) + (bits_of(z.x[i]) << 23));
    }
    return p;
  }
  // x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)).
  static void split(V x, V& mantissa, V& exponent) {
    for (int i = 0; i < 16; ++i) {
      const int32_t bits = static_cast<int32_t>(bits_of(x.x[i]));
      const int32_t e = (bits - kSqrtHalfBits) >> 23;
      mantissa.x[i] = float_from_bits(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(e) << 23));
      exponent.x[i] = static_cast<float>(e);
    }
  }

  static uint32_t bits_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
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

  // The bits of the largest of 128 floats of 16 bits. Flipping the magnitude of negative ones makes them compare as
  // integers do; NaN with the sign set counts only where all are such.
  static uint32_t top_half(const char* p) {
    int16_t top[16];
    for (int i = 0; i < 16; ++i) top[i] = INT16_MIN;
    for (int block = 0; block < 8; ++block) {
      int16_t h[16];
      __builtin_memcpy(h, p + block * sizeof h, sizeof h);
      for (int i = 0; i < 16; ++i) {
        const int16_t key = static_cast<int16_t>(h[i] ^ ((h[i] >> 15) & 0x7fff));
        top[i] = top[i] > key ? top[i] : key;
      }
    }
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) top[i] = top[i] > top[i + width] ? top[i] : top[i + width];
    }
    return static_cast<uint16_t>(top[0] ^ ((top[0] >> 15) & 0x7fff));
  }
  template <int kType>
  static float widen_half(uint32_t bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    return kType == 1 ? f16_to_float(half) : bf16_to_float(half);
  }

  template <int kType>
  static V load_halves(const char* p) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
    V v;
    if constexpr (kType == 1) {
      for (int i = 0; i < 16; ++i) v.x[i] = f16_to_float(h[i]);
    } else {
      for (int i = 0; i < 8; ++i) {
        v.x[i] = bf16_to_float(h[2 * i]);
        v.x[8 + i] = bf16_to_float(h[2 * i + 1]);
      }
    }
    return v;
  }
};

}  // namespace

#include "chunk.inl"
#include "math.inl"

const Kernels kKernelsPlain = {"plain", {chunk<0>, chunk<1>, chunk<2>}, exp_all, log_all, nullptr, nullptr};

}  // namespace ensemble

// NEON (aarch64). The same lanes and the same order of sums as the AVX2 file.
#include <arm_neon.h>
#include <stdint.h>

#include "kernels.h"

namespace ensemble {
namespace {

struct V {
  float32x4_t q[4];

  struct Integers {
    int32x4_t q[4];

    static Integers load(const int32_t* p) { return {{vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}}; }
    static void store(int32_t* p, Integers z) {
      for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, z.q[i]);
    }
  };

  static V set1(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {{v, v, v, v}};
  }
  static V add(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = vaddq_f32(a.q[i], b.q[i]);
    return a;
  }
  static V sub(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = vsubq_f32(a.q[i], b.q[i]);
    return a;
  }
  static V mul(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = vmulq_f32(a.q[i], b.q[i]);
    return a;
  }
  static V fma(V a, V b, V c) {
    for (int i = 0; i < 4; ++i) c.q[i] = vfmaq_f32(c.q[i], a.q[i], b.q[i]);
    return c;
  }
  static V fma_precise(V a, V b, V c) { return fma(a, b, c); }
  static V min(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = vminq_f32(a.q[i], b.q[i]);
    return a;
  }
  static V max_skip_nan(V x, V kept) {
    for (int i = 0; i < 4; ++i) x.q[i] = vmaxnmq_f32(x.q[i], kept.q[i]);
    return x;
  }
  static V max_keep_nan(V bound, V x) {
    for (int i = 0; i < 4; ++i) x.q[i] = vmaxq_f32(bound.q[i], x.q[i]);
    return x;
  }
  static Integers nearest(V x) {
    Integers z;
    for (int i = 0; i < 4; ++i) z.q[i] = vcvtnq_s32_f32(x.q[i]);
    return z;
  }
  static V fraction(Integers z) {
    V u;
    for (int i = 0; i < 4; ++i) {
      const int32x4_t low = vandq_s32(z.q[i], vdupq_n_s32(kFractionBits));
      u.q[i] = vreinterpretq_f32_s32(vorrq_s32(low, vdupq_n_s32(kOneBits)));
    }
    return u;
  }
  static V add_to_bits(V p, Integers z) {
    for (int i = 0; i < 4; ++i) p.q[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.q[i]), z.q[i]));
    return p;
  }
  static V scale(V p, V z) {
    for (int i = 0; i < 4; ++i) {
      const int32x4_t exponent = vshlq_n_s32(vreinterpretq_s32_f32(z.q[i]), 23);
      p.q[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.q[i]), exponent));
    }
    return p;
  }
  // x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)).
  static void split(V x, V& mantissa, V& exponent) {
    for (int i = 0; i < 4; ++i) {
      const int32x4_t bits = vreinterpretq_s32_f32(x.q[i]);
      const int32x4_t e = vshrq_n_s32(vsubq_s32(bits, vdupq_n_s32(kSqrtHalfBits)), 23);
      mantissa.q[i] = vreinterpretq_f32_s32(vsubq_s32(bits, vshlq_n_s32(e, 23)));
      exponent.q[i] = vcvtq_f32_s32(e);
    }
  }

  static float hmax(V v) {
    const float32x4_t a = vmaxnmq_f32(v.q[0], v.q[2]);
    return vmaxnmvq_f32(vmaxnmq_f32(a, vmaxnmq_f32(v.q[1], v.q[3])));
  }
  static float hsum(V v) {
    const float32x4_t s = vaddq_f32(vaddq_f32(v.q[0], v.q[2]), vaddq_f32(v.q[1], v.q[3]));
    const float32x2_t pair = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
  }

  static V load16(const float* p) {
    return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
  }
  static void store(float* p, V v) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.q[i]);
  }

  // As in the AVX2 file.
  static uint32_t top_half(const char* p) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
    uint16x8_t low[2] = {vld1q_u16(h), vld1q_u16(h + 8)};
    int16x8_t high[2] = {vreinterpretq_s16_u16(low[0]), vreinterpretq_s16_u16(low[1])};
    for (int i = 2; i < 16; ++i) {
      const uint16x8_t x = vld1q_u16(h + 8 * i);
      low[i % 2] = vminq_u16(low[i % 2], x);
      high[i % 2] = vmaxq_s16(high[i % 2], vreinterpretq_s16_u16(x));
    }
    const int16_t top = vmaxvq_s16(vmaxq_s16(high[0], high[1]));
    return top >= 0 ? static_cast<uint16_t>(top) : vminvq_u16(vminq_u16(low[0], low[1]));
  }
  template <int kType>
  static float widen_half(uint32_t bits) {
    if constexpr (kType == 1) {
      return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(static_cast<uint16_t>(bits)))), 0);
    } else {
      return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(bits << 16)), 0);
    }
  }

  template <int kType>
  static V load_halves(const char* p) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
    V v;
    if constexpr (kType == 1) {
      for (int i = 0; i < 4; ++i) v.q[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + 4 * i)));
    } else {
      // Even elements in the lower half, odd ones in the upper.
      for (int i = 0; i < 2; ++i) {
        const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(h + 8 * i));
        v.q[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
        v.q[2 + i] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
      }
    }
    return v;
  }
};

}  // namespace

#include "chunk.inl"
#include "math.inl"

const Kernels kKernelsNeon = {"neon", {chunk<0>, chunk<1>, chunk<2>}, exp_all, log_all, nullptr, nullptr};

}  // namespace ensemble

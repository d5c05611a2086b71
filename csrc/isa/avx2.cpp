// AVX2 + FMA + F16C.
#include <immintrin.h>
#include <stdint.h>

#include "halves_avx2.inl"
#include "kernels.h"

namespace ensemble {
namespace {

struct V {
  __m256 lo, hi;

  struct Integers {
    __m256i lo, hi;

    static Integers load(const int32_t* p) {
      const __m256i* q = reinterpret_cast<const __m256i*>(p);
      return {_mm256_load_si256(q), _mm256_load_si256(q + 1)};
    }
    static void store(int32_t* p, Integers z) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(p), z.lo);
      _mm256_store_si256(reinterpret_cast<__m256i*>(p) + 1, z.hi);
    }
  };

  static V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static V add(V a, V b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static V sub(V a, V b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static V mul(V a, V b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static V fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
  static V fma_precise(V a, V b, V c) { return fma(a, b, c); }
  static V min(V a, V b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  // MAXPS returns its second operand where either is NaN; the two names say which behaviour the caller needs.
  static V max_skip_nan(V x, V kept) { return {_mm256_max_ps(x.lo, kept.lo), _mm256_max_ps(x.hi, kept.hi)}; }
  static V max_keep_nan(V bound, V x) { return {_mm256_max_ps(bound.lo, x.lo), _mm256_max_ps(bound.hi, x.hi)}; }
  static Integers nearest(V x) { return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
  static V fraction(Integers z) { return {fraction8(z.lo), fraction8(z.hi)}; }
  static V add_to_bits(V p, Integers z) { return {add_to_bits8(p.lo, z.lo), add_to_bits8(p.hi, z.hi)}; }
  static V scale(V p, V z) { return {scale8(p.lo, z.lo), scale8(p.hi, z.hi)}; }
  // x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)).
  static void split(V x, V& mantissa, V& exponent) {
    split8(x.lo, mantissa.lo, exponent.lo);
    split8(x.hi, mantissa.hi, exponent.hi);
  }

  static float hmax(V v) {
    const __m256 m8 = _mm256_max_ps(v.lo, v.hi);
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  static float hsum(V v) {
    const __m256 s8 = _mm256_add_ps(v.lo, v.hi);
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  static V load16(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, V v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }

  static uint32_t top_half(const char* p) { return top_half_avx2(p); }
  template <int kType>
  static float widen_half(uint32_t bits) {
    return widen_half_avx2<kType>(bits);
  }

  template <int kType>
  static V load_halves(const char* p) {
    if constexpr (kType == 1) {
      const __m128i* h = reinterpret_cast<const __m128i*>(p);
      return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
    } else {
      // Even elements to one half, odd ones to the other: one operation each, and order is of no concern.
      const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
      return {_mm256_castsi256_ps(_mm256_slli_epi32(h, 16)), _mm256_castsi256_ps(_mm256_and_si256(h, odd))};
    }
  }

 private:
  static void split8(__m256 x, __m256& mantissa, __m256& exponent) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i e = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(kSqrtHalfBits)), 23);
    mantissa = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(e, 23)));
    exponent = _mm256_cvtepi32_ps(e);
  }
  static __m256 fraction8(__m256i z) {
    const __m256i low = _mm256_and_si256(z, _mm256_set1_epi32(kFractionBits));
    return _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_set1_epi32(kOneBits)));
  }
  static __m256 add_to_bits8(__m256 p, __m256i z) {
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), z));
  }
  static __m256 scale8(__m256 p, __m256 z) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  }
};

}  // namespace

#include "chunk.inl"
#include "math.inl"

const Kernels kKernelsAvx2 = {"avx2", {chunk<0>, chunk<1>, chunk<2>}, exp_all, log_all, widen_avx2, products_avx2};

}  // namespace ensemble

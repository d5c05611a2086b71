// AVX-512 F (with AVX2 and FMA). The same lanes and the same order of sums as the AVX2 file.
#if defined(ENSEMBLE_EMULATE_AVX512)
#include "../tests/emulate_avx512.h"  // the standalone test runs this file on machines without AVX-512
#else
#include <immintrin.h>
#endif
#include <stdint.h>

#include "halves_avx2.inl"
#include "kernels.h"

namespace ensemble {
namespace {

struct V {
  __m512 v;

  struct Integers {
    __m512i v;

    static Integers load(const int32_t* p) { return {_mm512_load_si512(p)}; }
    static void store(int32_t* p, Integers z) { _mm512_store_si512(p, z.v); }
  };

  static V set1(float x) { return {_mm512_set1_ps(x)}; }
  static V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
  static V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static V fma_precise(V a, V b, V c) { return fma(a, b, c); }
  static V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
  // VMAXPS returns its second operand where either is NaN.
  static V max_skip_nan(V x, V kept) { return {_mm512_max_ps(x.v, kept.v)}; }
  static V max_keep_nan(V bound, V x) { return {_mm512_max_ps(bound.v, x.v)}; }
  static Integers nearest(V x) { return {_mm512_cvtps_epi32(x.v)}; }
  static V fraction(Integers z) {
    const __m512i low = _mm512_and_si512(z.v, _mm512_set1_epi32(kFractionBits));
    return {_mm512_castsi512_ps(_mm512_or_si512(low, _mm512_set1_epi32(kOneBits)))};
  }
  static V add_to_bits(V p, Integers z) {
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), z.v))};
  }
  static V scale(V p, V z) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(z.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), exponent))};
  }
  // x = mantissa * 2^exponent with the mantissa in [sqrt(1/2), sqrt(2)).
  static void split(V x, V& mantissa, V& exponent) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i e = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(kSqrtHalfBits)), 23);
    mantissa.v = _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(e, 23)));
    exponent.v = _mm512_cvtepi32_ps(e);
  }

  static float hmax(V v) {
    const __m256 m8 = _mm256_max_ps(_mm512_castps512_ps256(v.v), upper_half(v.v));
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
  }
  static float hsum(V v) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(v.v), upper_half(v.v));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }

  static V load16(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v.v); }

  static uint32_t top_half(const char* p) { return top_half_avx2(p); }  // AVX-512 F has no 16-bit integers
  template <int kType>
  static float widen_half(uint32_t bits) {
    return widen_half_avx2<kType>(bits);
  }

  template <int kType>
  static V load_halves(const char* p) {
    if constexpr (kType == 1) {
      return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    } else {
      // As in the AVX2 file: even elements in the lower half, odd ones in the upper.
      const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      const __m512i shifts = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
      const __m512i shifted = _mm512_sllv_epi32(_mm512_broadcast_i64x4(h), shifts);
      return {_mm512_castsi512_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
    }
  }

 private:
  static __m256 upper_half(__m512 v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }
};

}  // namespace

#include "chunk.inl"
#include "math.inl"

const Kernels kKernelsAvx512 = {"avx512", {chunk<0>, chunk<1>, chunk<2>}, exp_all, log_all, widen_avx2, products_avx2};

}  // namespace ensemble

// What AVX2 and AVX-512 code share about 16-bit floats; to be included after immintrin.h.

namespace {

// The bits of the largest of 128 floats of 16 bits, compared as integers: of numbers with the sign bit unset the larger
// integer is larger, of those with it set the smaller one is. NaN with the sign set counts only where all are such.
inline uint32_t top_half_avx2(const char* p) {
  const __m256i* h = reinterpret_cast<const __m256i*>(p);
  __m256i a = _mm256_loadu_si256(h);
  __m256i b = _mm256_loadu_si256(h + 1);
  __m256i high_a = a, high_b = b, low_a = a, low_b = b;
  for (int i = 2; i < 8; i += 2) {
    a = _mm256_loadu_si256(h + i);
    b = _mm256_loadu_si256(h + i + 1);
    high_a = _mm256_max_epi16(high_a, a);
    high_b = _mm256_max_epi16(high_b, b);
    low_a = _mm256_min_epu16(low_a, a);
    low_b = _mm256_min_epu16(low_b, b);
  }
  high_a = _mm256_max_epi16(high_a, high_b);
  low_a = _mm256_min_epu16(low_a, low_b);
  const __m128i high = _mm_max_epi16(_mm256_castsi256_si128(high_a), _mm256_extracti128_si256(high_a, 1));
  const __m128i low = _mm_min_epu16(_mm256_castsi256_si128(low_a), _mm256_extracti128_si256(low_a, 1));
  // phminposuw finds minima only: what the largest lacks to 0x7fff is an unsigned number of 16 bits.
  const __m128i lacking = _mm_minpos_epu16(_mm_sub_epi16(_mm_set1_epi16(0x7fff), high));
  const uint32_t top = (0x7fffu - static_cast<uint32_t>(_mm_cvtsi128_si32(lacking))) & 0xffffu;
  return top < 0x8000u ? top : static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(low))) & 0xffffu;
}

template <int kType>
inline float widen_half_avx2(uint32_t bits) {
  if constexpr (kType == 1) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(bits))));
  } else {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(bits << 16))));
  }
}

}  // namespace

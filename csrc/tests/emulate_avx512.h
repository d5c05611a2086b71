// AVX-512 on machines without it: SIMDe, and the intrinsics that it lacks.
#pragma once

#include <simde/x86/avx512.h>
#include <string.h>

static inline simde__m512i emulated_srai_epi32(simde__m512i a, unsigned int n) {
  int32_t x[16];
  memcpy(x, &a, sizeof x);
  for (int i = 0; i < 16; ++i) x[i] >>= n;
  memcpy(&a, x, sizeof x);
  return a;
}

static inline simde__m512 emulated_cvtepi32_ps(simde__m512i a) {
  int32_t x[16];
  float y[16];
  simde__m512 result;
  memcpy(x, &a, sizeof x);
  for (int i = 0; i < 16; ++i) y[i] = (float)x[i];
  memcpy(&result, y, sizeof y);
  return result;
}

static inline simde__m512 emulated_cvtph_ps(simde__m256i a) {
  __m128i halves[2];
  float y[16];
  simde__m512 result;
  memcpy(halves, &a, sizeof halves);
  _mm256_storeu_ps(y, _mm256_cvtph_ps(halves[0]));
  _mm256_storeu_ps(y + 8, _mm256_cvtph_ps(halves[1]));
  memcpy(&result, y, sizeof y);
  return result;
}

static inline simde__m512i emulated_cvtps_epi32(simde__m512 a) {
  float x[16];
  simde__m512i result;
  memcpy(x, &a, sizeof x);
  __m256i halves[2] = {_mm256_cvtps_epi32(_mm256_loadu_ps(x)), _mm256_cvtps_epi32(_mm256_loadu_ps(x + 8))};
  memcpy(&result, halves, sizeof result);
  return result;
}

#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps

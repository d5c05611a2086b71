// Products of float32 rows with widened bfloat16 weights: AVX2 + FMA, for both x86 tables.
#include <immintrin.h>
#include <stdint.h>

#include "kernels.h"

namespace ensemble {
namespace {

constexpr int kRowsPerTile = 4;  // with 3 outputs: 12 sums, 3 weights and 1 row in the 16 registers
static_assert(kTileOutputs == 3);

inline __m256i tail_mask(int64_t left) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(left)), lane);
}

// The sums of four vectors. A row's own sum is the same expression wherever it stands among the four.
inline __m128 sum_each(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
}

template <int kRows, int kOutputs>
void tile(const Products& job, int64_t row, int64_t output) {
  const float* const x = job.x + row * job.x_stride;
  const float* const w = job.weights + output * job.weight_stride;
  __m256 sums[kRowsPerTile][kOutputs];
  for (int r = 0; r < kRowsPerTile; ++r) {
    for (int o = 0; o < kOutputs; ++o) sums[r][o] = _mm256_setzero_ps();
  }
  const int64_t whole = job.inputs / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    __m256 weights[kOutputs];
    for (int o = 0; o < kOutputs; ++o) weights[o] = _mm256_loadu_ps(w + o * job.weight_stride + i);
    for (int r = 0; r < kRows; ++r) {
      const __m256 values = _mm256_loadu_ps(x + r * job.x_stride + i);
      for (int o = 0; o < kOutputs; ++o) sums[r][o] = _mm256_fmadd_ps(values, weights[o], sums[r][o]);
    }
  }
  if (whole < job.inputs) {
    const __m256i mask = tail_mask(job.inputs - whole);
    for (int r = 0; r < kRows; ++r) {
      const __m256 values = _mm256_maskload_ps(x + r * job.x_stride + whole, mask);
      for (int o = 0; o < kOutputs; ++o) {
        sums[r][o] = _mm256_fmadd_ps(values, _mm256_loadu_ps(w + o * job.weight_stride + whole), sums[r][o]);
      }
    }
  }
  for (int o = 0; o < kOutputs; ++o) {
    // sums has room for whole tiles of rows, so four are written whatever kRows is
    float* const to = job.sums + (output + o) * job.sum_stride + row;
    const __m128 total = sum_each(sums[0][o], sums[1][o], sums[2][o], sums[3][o]);
    _mm_storeu_ps(to, job.add ? _mm_add_ps(_mm_loadu_ps(to), total) : total);
  }
}

// Fetches a few lines of what comes next beside each tile: in one burst they would wait for each other.
class Fetcher {
 public:
  Fetcher(const Products& job, int64_t tiles) : at_(static_cast<const char*>(job.ahead)) {
    lines_ = at_ == nullptr ? 0 : (job.ahead_bytes / 64 + tiles - 1) / tiles;
    end_ = at_ + (at_ == nullptr ? 0 : job.ahead_bytes);
  }
  void some() {
    for (int64_t i = 0; i < lines_ && at_ < end_; ++i, at_ += 64) _mm_prefetch(at_, _MM_HINT_T1);
  }

 private:
  const char* at_;
  const char* end_;
  int64_t lines_;
};

template <int kRows>
void column_of_tiles(const Products& job, int64_t row, Fetcher& fetcher) {
  int64_t output = 0;
  for (; output + 3 <= job.outputs; output += 3) {
    fetcher.some();
    tile<kRows, 3>(job, row, output);
  }
  if (job.outputs - output == 2) tile<kRows, 2>(job, row, output);
  if (job.outputs - output == 1) tile<kRows, 1>(job, row, output);
}

}  // namespace

void products_avx2(const Products& job) {
  const int64_t passes = (job.rows + kRowsPerTile - 1) / kRowsPerTile;
  Fetcher fetcher(job, passes * (job.outputs / 3 + 1));
  for (int64_t row = 0; row < job.rows; row += kRowsPerTile) {
    switch (job.rows - row) {
      case 1: column_of_tiles<1>(job, row, fetcher); break;
      case 2: column_of_tiles<2>(job, row, fetcher); break;
      case 3: column_of_tiles<3>(job, row, fetcher); break;
      default: column_of_tiles<4>(job, row, fetcher); break;
    }
  }
}

void widen_avx2(const uint16_t* from, int64_t from_stride, int64_t rows, int64_t count, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
      const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      _mm256_store_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < to_stride; ++i) {
      const uint32_t bits = i < count ? static_cast<uint32_t>(from[i]) << 16 : 0;
      __builtin_memcpy(to + i, &bits, sizeof bits);
    }
  }
}

}  // namespace ensemble

// The chunk loop, written once over a 16-lane vector type V that the including file defines.
//
// V must provide: set1, add, sub, fma, fma_precise (which even unfused code rounds only once or nearly so),
// max_skip_nan (drops a NaN in its first argument), max_keep_nan (returns a NaN in its second argument), nearest (the nearest
// integer, as bits for scale and as float), scale (adds an integer's low bits to the exponent), hmax, hsum, and load32 of each dtype, which returns 32 elements as two vectors. Lanes hold the same elements in every instruction set, sums run in the
// same order and every product-sum is fused, so AVX2, AVX-512 and NEON give the same bits (plain code does not fuse).

namespace {

// 2^f on [-1/2, 1/2]: minimax in relative error with p(0) = 1 exactly, 1.6e-7 in float32 arithmetic.
constexpr float kC1 = 0x1.62e42ap-1f;
constexpr float kC2 = 0x1.ebf9bcp-3f;
constexpr float kC3 = 0x1.c6b752p-5f;
constexpr float kC4 = 0x1.3cea88p-7f;
constexpr float kC5 = 0x1.5bba14p-10f;
constexpr float kLowest = -125.0f;     // 2^-125 is normal and far below anything a float32 sum can see

// 2^t for t in [-125, 125]: t = n + f with n the nearest integer.
inline V exp2_in_range(V t) {
  V n_bits, n;
  V::nearest(t, n_bits, n);
  const V f = V::sub(t, n);
  V p = V::fma(V::set1(kC5), f, V::set1(kC4));
  p = V::fma(p, f, V::set1(kC3));
  p = V::fma(p, f, V::set1(kC2));
  p = V::fma(p, f, V::set1(kC1));
  p = V::fma(p, f, V::set1(1.0f));
  return V::scale(p, n_bits);
}

template <int kType>
void chunk(const void* x, int64_t groups, const void* ahead, float* group_max, ChunkSums* sums) {
  constexpr int64_t kBlockBytes = 32 * (kType == 0 ? 4 : 2);
  constexpr int64_t kGroupBytes = 4 * kBlockBytes;
  const char* const begin = static_cast<const char*>(x);
  const char* const next = static_cast<const char*>(ahead);

  const V lowest = V::set1(-__builtin_inff());
  V top = lowest;
  for (int64_t g = 0; g < groups; ++g) {
    V high_a = lowest;
    V high_b = lowest;
    for (int block = 0; block < 4; ++block) {
      V a, b;
      V::load32<kType>(begin + g * kGroupBytes + block * kBlockBytes, a, b);
      high_a = V::max_skip_nan(a, high_a);
      high_b = V::max_skip_nan(b, high_b);
    }
    const V high = V::max_skip_nan(high_a, high_b);
    group_max[g] = V::hmax(high);
    top = V::max_skip_nan(high, top);
  }
  sums->max = V::hmax(top);

  // A separate accumulator per group keeps the rounding error of long sums small.
  const V scale = V::set1(kLog2E);
  const V shift = V::set1(-(sums->max * kLog2E));
  const V lowest_exponent = V::set1(kLowest);
  V sum = V::set1(0.0f);
  V weighted = V::set1(0.0f);
  for (int64_t g = 0; g < groups; ++g) {
    V group_sum = V::set1(0.0f);
    V group_weighted = V::set1(0.0f);
    // Not unrolled: one block at a time leaves AVX2 enough registers to keep the constants, and loads are the bottleneck.
#pragma GCC unroll 1
    for (int block = 0; block < 4; ++block) {
      const int64_t offset = g * kGroupBytes + block * kBlockBytes;
      __builtin_prefetch(next + offset);
      if constexpr (kType == 0) __builtin_prefetch(next + offset + 64);
      V a, b;
      V::load32<kType>(begin + offset, a, b);
      a = V::max_keep_nan(lowest_exponent, V::fma_precise(a, scale, shift));
      const V ea = exp2_in_range(a);
      group_sum = V::add(group_sum, ea);
      group_weighted = V::fma(ea, a, group_weighted);
      b = V::max_keep_nan(lowest_exponent, V::fma_precise(b, scale, shift));
      const V eb = exp2_in_range(b);
      group_sum = V::add(group_sum, eb);
      group_weighted = V::fma(eb, b, group_weighted);
    }
    sum = V::add(sum, group_sum);
    weighted = V::add(weighted, group_weighted);
  }
  sums->sum = V::hsum(sum);
  sums->weighted = V::hsum(weighted);
}

}  // namespace

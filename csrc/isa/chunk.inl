// The chunk loop, written once over a 16-lane vector type V that the including file defines.
//
// V must provide: set1, add, fma, fma_precise (which even unfused code rounds only once or nearly so), max_skip_nan
// (drops a NaN in its first argument), max_keep_nan (returns a NaN in its second argument), hmax, hsum, load16, store
// and load_halves (16 elements of either 16-bit type); 16 Integers with nearest (of floats), fraction (the low 23 bits
// as a number in [1, 2)) and add_to_bits (of a number); top_half, the bits of the largest of 128 floats of 16 bits, and
// widen_half of them. Lanes hold the same elements in every instruction set, sums run in the same order and every
// product-sum is fused, so AVX2, AVX-512 and NEON give the same bits (plain code does not fuse).

namespace {

// p(1 + f) = (1 - f + 2^f) / 2 for f in [0, 1), at most 1. Just below 1 a float32's last bit counts half of what it counts
// above: where f = z / 2^23, adding z to the bits of p gives those of 2^f, and the bits of z from 23 on raise its exponent.
// Minimax in the relative error of that, 1.7e-7 in float32 arithmetic; p(1) = 1 exactly, fused or not.
constexpr float kP5 = 0x1.e974f2p-11f;
constexpr float kP4 = -0x1.4e184ap-13f;
constexpr float kP3 = 0x1.3a9928p-6f;
constexpr float kP2 = 0x1.bb2b52p-5f;
constexpr float kP1 = -0x1.4b036cp-2f;
constexpr float kP0 = 0x1.3fca5ep+0f;
constexpr float kUnit = 0x1p23f;             // exponents are counted in units of 2^-23, the last bit of a float32 fraction
constexpr float kLowest = -125.0f * kUnit;   // 2^-125 is normal and far below anything a float32 sum can see

template <int kType>
inline V load(const char* p) {
  if constexpr (kType == 0) {
    return V::load16(reinterpret_cast<const float*>(p));
  } else {
    return V::load_halves<kType>(p);
  }
}

// The largest of 128 elements.
template <int kType>
inline float group_top(const char* p) {
  if constexpr (kType == 0) {
    V high_a = V::set1(-__builtin_inff());
    V high_b = high_a;
    for (int i = 0; i < 8; i += 2) {
      high_a = V::max_skip_nan(load<0>(p + i * 64), high_a);
      high_b = V::max_skip_nan(load<0>(p + i * 64 + 64), high_b);
    }
    return V::hmax(V::max_skip_nan(high_a, high_b));
  } else {
    return V::widen_half<kType>(V::top_half(p));
  }
}

// Exponents of one group between the two halves of the loop below.
struct Staged {
  alignas(64) float t[8][16];  // in units of 2^-23
  alignas(64) int32_t z[8][16];  // t rounded to integers
};

template <int kType>
void chunk(const void* logits, int64_t groups, const void* ahead, float* group_max, ChunkSums* sums) {
  constexpr int64_t kVectorBytes = 16 * (kType == 0 ? 4 : 2);
  constexpr int64_t kGroupBytes = 8 * kVectorBytes;
  const char* const begin = static_cast<const char*>(logits);
  const char* const next = static_cast<const char*>(ahead);

  float top = -__builtin_inff();
  for (int64_t g = 0; g < groups; ++g) {
    group_max[g] = group_top<kType>(begin + g * kGroupBytes);
    top = group_max[g] > top ? group_max[g] : top;
  }
  sums->max = top;

  // t = x * kLog2E - shift as a fixed-point number: its integer part is the exponent of 2^t, its fraction, put below
  // an exponent of zero, the polynomial's argument. A vector's steps are one long chain, too long for a processor to
  // have enough of them under way at once; so each turn prepares one group and finishes the one before.
  const V scale = V::set1(kLog2E * kUnit);
  const V shift = V::set1(-(top * kLog2E) * kUnit);
  const V lowest = V::set1(kLowest);
  V sum = V::set1(0.0f);
  V weighted = V::set1(0.0f);
  Staged staged[2];

  const auto turn = [&]<bool kPrepare, bool kFinish>(int64_t g) {
    Staged& to = staged[g & 1];
    const Staged& from = staged[(g & 1) ^ 1];
    // A separate accumulator per group keeps the rounding error of long sums small.
    V group_sum = V::set1(0.0f);
    V group_weighted = V::set1(0.0f);
    if constexpr (kPrepare) {
      for (int64_t line = 0; line < kGroupBytes; line += 64) __builtin_prefetch(next + g * kGroupBytes + line);
    }
    // Not unrolled: one vector at a time leaves AVX2 enough registers to keep the constants.
#pragma GCC unroll 1
    for (int i = 0; i < 8; ++i) {
      if constexpr (kPrepare) {
        const V x = load<kType>(begin + g * kGroupBytes + i * kVectorBytes);
        const V t = V::max_keep_nan(lowest, V::fma_precise(x, scale, shift));
        V::store(to.t[i], t);
        V::Integers::store(to.z[i], V::nearest(t));
      }
      if constexpr (kFinish) {
        const auto z = V::Integers::load(from.z[i]);
        const V u = V::fraction(z);
        V p = V::fma(V::set1(kP5), u, V::set1(kP4));
        p = V::fma(p, u, V::set1(kP3));
        p = V::fma(p, u, V::set1(kP2));
        p = V::fma(p, u, V::set1(kP1));
        p = V::fma(p, u, V::set1(kP0));
        const V e = V::add_to_bits(p, z);
        group_sum = V::add(group_sum, e);
        group_weighted = V::fma(e, V::load16(from.t[i]), group_weighted);
      }
    }
    if constexpr (kFinish) {
      sum = V::add(sum, group_sum);
      weighted = V::add(weighted, group_weighted);
    }
  };
  turn.template operator()<true, false>(0);
  for (int64_t g = 1; g < groups; ++g) turn.template operator()<true, true>(g);
  turn.template operator()<false, true>(groups);
  sums->sum = V::hsum(sum);
  sums->weighted = V::hsum(weighted) / kUnit;
}

}  // namespace

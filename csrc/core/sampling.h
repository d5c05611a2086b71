// Sampling one candidate: filters as transformers applies them, then Gumbel-max over counter-based noise.
#pragma once

#include <cstdint>
#include <limits>

namespace ensemble {

struct SamplingSettings {
  float temperature;
  int32_t top_k;  // 0: off
  float top_p;
  float min_p;
  int64_t seed;
  int64_t row;
  int64_t step;
};

// What the filters keep. Top-k and top-p end at one element of the order (log probability descending, place ascending),
// min-p at a distance from the largest log probability.
struct Cut {
  float log = -std::numeric_limits<float>::infinity();
  int64_t place = std::numeric_limits<int64_t>::max();
  float top = 0.0f;
  float least = -std::numeric_limits<float>::infinity();  // log of min_p

  // Whether candidates of this log probability may be kept, and whether the one at a place is.
  bool may_keep(float value) const {
    return value >= log && value - top >= least && value > -std::numeric_limits<float>::infinity();
  }
  bool keeps(float value, int64_t at) const { return may_keep(value) && (value > log || at <= place); }
};

// Weights are whole numbers, exp(log - largest log) in units of 2^-40 rounded down: sums are the same in any order.
constexpr double kWeightUnit = 0x1p40;
inline int64_t whole_weight(float exponential) { return static_cast<int64_t>(exponential * kWeightUnit); }

// How much weight may lie before a candidate that top-p keeps.
int64_t nucleus_limit(float top_p, double total);

// The filters on log probabilities log[0 .. n), of which `top` is the largest, by radix selection: nothing is sorted.
Cut find_cut(const float* log, int64_t n, float top, const SamplingSettings& settings);

// Standard Gumbel noise of one candidate: Philox-4x32-10 (Salmon et al., SC 2011), -log(-log r) in float64.
double gumbel(int32_t cid, int64_t seed, int64_t row, int64_t step);
// No noise is larger.
constexpr double kLargestGumbel = 17.5;  // -log(-log(1 - 2^-25)) is 17.33

// The largest log probability + noise so far, the smaller place among equals.
struct Draw {
  int64_t place;
  double score = -std::numeric_limits<double>::infinity();
};

// Takes log[0 .. n), n at most 128, of the places from `first` on into the draw. numbers[i], or the place where it is
// nullptr, selects a candidate's noise.
void draw_block(const float* log, int64_t n, int64_t first, const int32_t* numbers, const Cut& cut,
                const SamplingSettings& settings, Draw& draw);

// Index into probs[0 .. n) of the drawn candidate; n where all are 0. cids == nullptr numbers candidates by index.
int64_t sample(const float* probs, const int32_t* cids, int64_t n, const SamplingSettings& settings);

}  // namespace ensemble

// Sampling one candidate: filters as transformers applies them, then Gumbel-max over counter-based noise.
#pragma once

#include <cstdint>

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

// Standard Gumbel noise of one candidate: Philox-4x32-10 (Salmon et al., SC 2011), -log(-log r) in float64.
double gumbel(int32_t cid, int64_t seed, int64_t row, int64_t step);

// Index into probs[0 .. n) of the drawn candidate; n where all are 0. cids == nullptr numbers candidates by index.
int64_t sample(const float* probs, const int32_t* cids, int64_t n, const SamplingSettings& settings);

}  // namespace ensemble

// One model's own choice among its whole vocabulary, sampled, and the distribution that it is sampled from.
#pragma once

#include <cstdint>

#include "types.h"

namespace ensemble {

// Settings of all rows, field by field.
struct SampleSettings {
  const float* temperature;
  const int32_t* top_k;
  const float *top_p, *min_p;
  const int64_t *seed, *row, *step;
};

struct SampleInput {
  Logits logits;
  Allowed allowed;
  const int32_t* numbers;  // [rows, cols]: whose noise each column takes; nullptr: the column's own number
  SampleSettings settings;
};

// ids [rows]: the drawn column; where the temperature is 0 the first of the largest; -1 where nothing is allowed.
void sample_tokens(const SampleInput& input, int32_t* ids, int threads);

// probs [rows, cols]: each row's probabilities after temperature (0 counts as 1) and filters; all 0 where nothing is
// allowed.
void token_probs(const SampleInput& input, float* probs, int threads);

}  // namespace ensemble

// Does a verifier agree with each token of a draft? One read of its logits.
#pragma once

#include <cstdint>

#include "candidates.h"
#include "types.h"

namespace ensemble {

constexpr int32_t kTargetEnd = -2;

struct VerifyInput {
  Logits logits;
  Allowed allowed;
  const int32_t* targets;  // [rows]; kTargetEnd: any EOS id; other values outside the vocabulary: nothing to check
  Table eos_ids;
};

// All [rows].
struct VerifyOutput {
  float* target_prob;
  uint8_t* is_argmax;
  int32_t* argmax;
  float* logsumexp;
  int32_t* flags;
};

void verify_draft(const VerifyInput& input, const VerifyOutput& output, int threads);

}  // namespace ensemble

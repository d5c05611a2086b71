// The fused steps: everything between the models' logits and the next candidate.
#pragma once

#include <cstdint>
#include <vector>

#include "candidates.h"
#include "decide.h"
#include "types.h"

namespace ensemble {

// One model's side of an aligned vocabulary, and its logits.
struct ModelInput {
  Logits logits;
  Allowed allowed;
  Table to_cid;    // [V]
  Table exact_id;  // [N]
  Table piece_id;  // [N]
  Table eos_ids;
};

struct FuseInput {
  std::vector<ModelInput> models;
  PrefixRanges prefixes;
  FuseSettings settings;
  int64_t rows;
  int64_t k;
};

// Results; U is models * k for fuse_step and k for fuse_full, arrays per model are [models, rows].
struct FuseOutput {
  int32_t *cid, *primary_id;     // [rows]
  int32_t* cids;                 // [rows, U]
  float* probs;                  // [rows, U]
  int32_t* count;                // [rows]
  float *max_prob, *entropy;     // [rows]
  float* kl;                     // [models, rows]
  float* js;                     // [rows]
  uint8_t *ensembled, *sharpened;
  int32_t* top_cid;              // [models, rows]
  float *top_prob, *logsumexp, *model_entropy;
  int32_t* flags;                // [rows]
};

void fuse_step(const FuseInput& input, const FuseOutput& output, int threads);
void fuse_full(const FuseInput& input, const FuseOutput& output, int threads);

// fuse_candidates: from scores [models, rows, width] to one choice per row.
struct CandidateScores {
  const float* scores;
  const int32_t* cids;       // [rows, width]
  const float* logsumexp;    // [models, rows]
  const int32_t* tops;       // [rows, tops_width]
  const float* primary_max;  // [rows]
  const int32_t* primary_cid;
  int64_t models, rows, width, tops_width;
};
struct FusedOutput {
  float* probs;  // [rows, width]
  int32_t* choice;
  float *max_prob, *entropy, *kl, *js;
  uint8_t *ensembled, *sharpened;
  int32_t* flags;
};
void fuse_candidates(const CandidateScores& input, const PrefixRanges& prefixes, const FuseSettings& settings,
                     const FusedOutput& output, int threads);
// One row of it; `scores` holds the row's [models, stride] arrays.
Decision fuse_row(const float* scores, int64_t stride, const float* logsumexp, int64_t logsumexp_stride,
                  const int32_t* cids, int64_t width, int64_t models, const PrimaryChoice& primary,
                  const PrefixRanges& prefixes, const FuseSettings& settings, int64_t row, float* probs, float* kl,
                  int64_t kl_stride);

}  // namespace ensemble

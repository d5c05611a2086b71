// Aggregate, gate, sharpen and choose among the candidates of one row. The rules: docs/contracts.md.
#pragma once

#include <cstdint>

#include "sampling.h"

namespace ensemble {

enum Aggregate : int32_t { kArithmetic = 0, kGeometric = 1 };
enum Sharpen : int32_t { kSharpenNone = 0, kSharpenPrefix = 1, kSharpenGeometric = 2, kSharpenTemperature = 3 };
enum Trigger : int32_t { kByMaxProb = 0, kByEntropy = 1 };
enum Gate : int32_t { kGateNone = 0, kGateMaxProb = 1, kGateKl = 2, kGateJs = 3 };

// The settings of all rows, field by field; weights are [rows, models].
struct FuseSettings {
  const float* weights;
  const int32_t *top_k, *aggregate, *oov, *sharpen, *trigger;
  const float *threshold, *min_prob, *tau;
  const int32_t* gate;
  const float *gate_threshold, *temperature;
  const int32_t* sample_top_k;
  const float *top_p, *min_p;
  const int64_t *seed, *row, *step;
};

// exp and log in place over n elements; n may be rounded up to a multiple of 16 within the array.
struct Transcendentals {
  void (*exp)(float* x, int64_t n);
  void (*log)(float* x, int64_t n);
};
extern const Transcendentals kExact;         // float64 rounded once: unions of a few candidates
Transcendentals vectorised_transcendentals();  // the instruction set's: whole vocabularies

// What one row is decided from. Arrays of candidates hold n entries with room for n rounded up to a multiple of 16.
struct Distributions {
  int64_t models;
  int64_t n;
  int64_t stride;         // between the arrays of two models
  float* log_q;           // [models, stride]: what is averaged
  float* p;               // [models, stride]: the models' own probabilities; consumed
  bool p_is_exp_log_q;    // the two describe one distribution
  const int32_t* cids;    // [n] ascending, then -1; nullptr: candidate i is i
  const uint8_t* inside;  // [n], which candidates exist; nullptr: those with cids >= 0
  const uint8_t* consulted;  // [models], which models have a distribution at all
};

struct PrimaryChoice {
  const int32_t* top_cids;  // candidates of the primary's best ids, -1 where none
  int64_t top_count;
  float probability;  // of its top id
  int32_t cid;        // of its top id
};

struct PrefixRanges {
  const int32_t* end;  // [size]
  int64_t size;
  int64_t space_cid;
};

struct Decision {
  int32_t choice;
  float max_prob, entropy, js;
  bool ensembled, sharpened;
  int32_t flags;
};

// probs: [n] with room as above; kl: element m at kl[m * kl_stride].
Decision decide(const Distributions& d, const PrimaryChoice& primary, const PrefixRanges& prefixes,
                const FuseSettings& settings, int64_t row, const Transcendentals& math, float* probs, float* kl,
                int64_t kl_stride);

// log_q [n] from scores: log-softmax with +inf as the largest float32; -inf more than 1000 below the maximum.
void log_softmax(const float* scores, int64_t n, float* log_q);

}  // namespace ensemble

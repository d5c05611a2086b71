// What fuse_step and fuse_full share: every model's top-k and statistics, and turning a decision into outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "fuse.h"
#include "topk_stats.h"

namespace ensemble {

// Top-k of all models of one call, [models][rows, k], with the per-model outputs written as rows finish.
class TopkResults {
 public:
  TopkResults(const FuseInput& input, const FuseOutput& output);

  const std::vector<TopkRequest>& requests() const { return requests_; }
  const int32_t* ids(int64_t model, int64_t row) const { return requests_[model].ids + row * k_; }
  float maximum(int64_t model, int64_t row) const { return requests_[model].values[row * k_]; }
  int32_t flags(int64_t row) const;

  // Second stage of every model for one row; writes top_cid and top_prob.
  void finish_row(const TopkStages& stages, int64_t row, const FuseInput& input, const FuseOutput& output) const;

 private:
  int64_t rows_, k_;
  std::vector<TopkRequest> requests_;
  std::vector<float> values_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> flags_;
};

// The id that the primary emits for a candidate but END: its exact id, else its first piece; -1 without either.
int32_t emitted_id(const ModelInput& primary, int32_t cid);

// Whether the primary, whose row `reader` reads, could emit candidate `cid` only by an id that its mask bans.
bool out_of_reach(const ModelInput& primary, const RowReader& reader, int32_t cid, int64_t size);

// Everything of `decision` but kl and probs, which decide() wrote; primary_top is the primary's own best id.
void write_decision(const Decision& decision, int64_t row, int32_t primary_top, const FuseInput& input,
                    const FuseOutput& output);

}  // namespace ensemble

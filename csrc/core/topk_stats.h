// topk_stats for any number of models at once: k best entries, logsumexp and entropy of every row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stream.h"
#include "types.h"

namespace ensemble {

// One model's logits and where its results go; values and ids are [rows, k], the rest [rows].
struct TopkRequest {
  Logits logits;
  Allowed allowed;
  int64_t k;
  float* values;
  int32_t* ids;
  float* logsumexp;
  float* entropy;
  int32_t* flags;
};

// The two stages apart, so that a caller can go on with a row as soon as that row's second stage is done.
class TopkStages {
 public:
  // Stage 1 of every request: streams all logits on `threads` threads.
  void stream(const std::vector<TopkRequest>& requests, int threads);
  // Stage 2 of one row of requests[i]; calls for different rows may run at the same time.
  void finish_row(std::size_t i, int64_t row) const;
  // The maxima of one row's groups of 128 entries.
  const float* group_maxima(std::size_t i, int64_t row) const;
  // log Σ e^(x − max) of one row of requests[i], with +inf as the largest float32; 0 where the row is empty.
  float log_total(std::size_t i, int64_t row) const;

 private:
  const std::vector<TopkRequest>* requests_ = nullptr;
  std::vector<int64_t> first_task_;     // per request, in units of (row, chunk); one more at the end
  std::vector<int64_t> group_offset_;   // per request, where its group maxima start
  std::vector<ChunkSummary> summaries_; // by task
  std::vector<float> group_max_;
};

// Workspace that a thread keeps between calls: fresh pages would cost more than the selection itself.
TopkStages& thread_stages();

void topk_stats(const TopkRequest& request, int threads);

}  // namespace ensemble

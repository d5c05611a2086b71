#include "topk_stats.h"

#include <algorithm>

#include "pool.h"
#include "select.h"

namespace ensemble {

void TopkStages::stream(const std::vector<TopkRequest>& requests, int threads) {
  requests_ = &requests;
  first_task_.assign(1, 0);
  group_offset_.assign(1, 0);
  for (const TopkRequest& r : requests) {
    first_task_.push_back(first_task_.back() + r.logits.rows * chunk_count(r.logits.cols));
    group_offset_.push_back(group_offset_.back() + r.logits.rows * group_count(r.logits.cols));
  }
  const int64_t tasks = first_task_.back();
  summaries_.resize(static_cast<size_t>(tasks));
  group_max_.resize(static_cast<size_t>(group_offset_.back()));

  // Neighbouring chunks on one thread let prefetching help; few chunks are shared out one by one.
  const int64_t grain = std::clamp<int64_t>(tasks / (threads * 8), 1, 4);
  parallel_for(threads, tasks, grain, [&](int64_t task) {
    const size_t i = static_cast<size_t>(std::upper_bound(first_task_.begin(), first_task_.end(), task) -
                                         first_task_.begin() - 1);
    const TopkRequest& r = requests[i];
    const int64_t chunks = chunk_count(r.logits.cols);
    const int64_t row = (task - first_task_[i]) / chunks;
    const int64_t c = (task - first_task_[i]) % chunks;
    float* maxima = group_max_.data() + group_offset_[i] + row * group_count(r.logits.cols) + c * kChunkGroups;
    stream_chunk(row_pointer(r.logits, row), r.logits.dtype, r.logits.cols, r.allowed.row(row), c, maxima,
                 &summaries_[static_cast<size_t>(task)]);
  });
}

const float* TopkStages::group_maxima(std::size_t i, int64_t row) const {
  return group_max_.data() + group_offset_[i] + row * group_count((*requests_)[i].logits.cols);
}

float TopkStages::log_total(std::size_t i, int64_t row) const {
  const int64_t chunks = chunk_count((*requests_)[i].logits.cols);
  return combine_chunks(summaries_.data() + first_task_[i] + row * chunks, chunks).log_total;
}

void TopkStages::finish_row(std::size_t i, int64_t row) const {
  const TopkRequest& r = (*requests_)[i];
  const int64_t chunks = chunk_count(r.logits.cols);
  const RowStats stats = combine_chunks(summaries_.data() + first_task_[i] + row * chunks, chunks);
  r.logsumexp[row] = stats.logsumexp;
  r.entropy[row] = stats.entropy;
  r.flags[row] = stats.flags;
  select_topk(row_pointer(r.logits, row), r.logits.dtype, r.logits.cols, r.allowed.row(row),
              group_maxima(i, row), r.k, r.values + row * r.k,
              r.ids + row * r.k);
}

TopkStages& thread_stages() {
  static thread_local TopkStages stages;
  return stages;
}

void topk_stats(const TopkRequest& request, int threads) {
  const std::vector<TopkRequest> requests{request};
  TopkStages& stages = thread_stages();
  stages.stream(requests, threads);
  parallel_for(threads, request.logits.rows, 1, [&](int64_t row) { stages.finish_row(0, row); });
}

}  // namespace ensemble

#include "verify_draft.h"

#include <algorithm>
#include <vector>

#include "numerics.h"
#include "pool.h"
#include "topk_stats.h"

namespace ensemble {

void verify_draft(const VerifyInput& in, const VerifyOutput& out, int threads) {
  const int64_t rows = in.logits.rows;
  std::vector<float> largest(static_cast<size_t>(rows)), entropy(static_cast<size_t>(rows));
  const std::vector<TopkRequest> requests{
      {in.logits, in.allowed, 1, largest.data(), out.argmax, out.logsumexp, entropy.data(), out.flags}};
  TopkStages& stages = thread_stages();
  stages.stream(requests, threads);
  parallel_for(threads, rows, 4, [&](int64_t row) {
    stages.finish_row(0, row);
    const RowReader reader(in.logits, in.allowed, row);
    const int32_t target = in.targets[row];
    const int32_t best = out.argmax[row];
    const int32_t* const eos_end = in.eos_ids.data + in.eos_ids.size;
    const bool is_end = target == kTargetEnd;
    out.target_prob[row] = probability(is_end ? reader.end_score(in.eos_ids) : reader.read(target), out.logsumexp[row]);
    out.is_argmax[row] = best >= 0 && (is_end ? std::find(in.eos_ids.data, eos_end, best) != eos_end : best == target);
  });
}

}  // namespace ensemble

// Stage 1 of topk_stats: one read of the logits gives, per chunk, sums of the softmax and a maximum per group.
#pragma once

#include <cstdint>

#include "types.h"

namespace ensemble {

// What one chunk contributes to its row. Sums are of 2^t and 2^t * t with t = x * kLog2E - shift.
struct ChunkSummary {
  double shift;     // about max * kLog2E
  double sum;       // where max is +inf: the number of elements that are +inf or the largest float32
  double weighted;  // unused where max is +inf
  float max;
  bool nan;
};

// Number of groups and chunks of a row of `cols` elements.
inline int64_t group_count(int64_t cols) { return ceil_div(cols, kGroup); }
inline int64_t chunk_count(int64_t cols) { return ceil_div(cols, kChunk); }

// Streams chunk `c` of `row`. Elements that `allowed` (nullptr: all) leaves out, and NaN, count as -inf. Writes the
// chunk's group maxima to group_max[0 .. 64) or as many as the row still has.
void stream_chunk(const void* row, Dtype dtype, int64_t cols, const int32_t* allowed, int64_t c, float* group_max,
                  ChunkSummary* summary);

// Statistics of a row from its chunks, combined in ascending order in float64.
struct RowStats {
  float max;
  float log_total;  // log Σ e^(x − max), with +inf as the largest float32
  float logsumexp;
  float entropy;
  int32_t flags;
};
RowStats combine_chunks(const ChunkSummary* chunks, int64_t count);

}  // namespace ensemble

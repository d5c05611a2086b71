// The k best entries of one row, from its group maxima and the few groups that can hold them.
#pragma once

#include <cstdint>

#include "types.h"

namespace ensemble {

// Order: value descending, id ascending. NaN, -inf and entries that `allowed` (nullptr: all) leaves out do not take
// part; what then remains of the k columns holds value -inf and id -1. group_max: ceil(cols / 128) maxima over the
// entries that take part (-inf where a group has none).
void select_topk(const void* row, Dtype dtype, int64_t cols, const int32_t* allowed, const float* group_max, int64_t k,
                 float* values, int32_t* ids);

}  // namespace ensemble

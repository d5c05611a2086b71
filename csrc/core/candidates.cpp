#include "candidates.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "half.h"
#include "numerics.h"

namespace ensemble {

int32_t make_union(int32_t* cids, int64_t n) {
  int32_t* const end = std::remove_if(cids, cids + n, [](int32_t cid) { return cid < 0; });
  std::sort(cids, end);
  int32_t* const last = std::unique(cids, end);
  std::fill(last, cids + n, -1);
  return static_cast<int32_t>(last - cids);
}

float RowReader::read(int32_t id) const {
  if (id < 0 || id >= cols_ || !allows(id)) return -kInfinity;
  const float value = load_element(row_, dtype_, id);
  return std::isnan(value) ? -kInfinity : value;
}

float RowReader::end_score(const Table& eos_ids) const {
  float top = -kInfinity;
  for (int64_t e = 0; e < eos_ids.size; ++e) top = std::max(top, read(eos_ids.data[e]));
  if (std::isinf(top)) return top;
  static thread_local std::vector<float> work;
  const float total = tree_sum(eos_ids.size, work, [&](int64_t e) {
    const float below = bounded(read(eos_ids.data[e])) - top;
    return below > kFloor ? exp_float(below) : 0.0f;
  });
  return top + log_float(total);
}

int32_t RowReader::best_end(const Table& eos_ids) const {
  int32_t best = -1;
  float top = -kInfinity;
  for (int64_t e = 0; e < eos_ids.size; ++e) {
    const int32_t id = eos_ids.data[e];
    const float score = read(id);
    if (allows(id) && (best < 0 || score > top)) {
      top = score;
      best = id;
    }
  }
  return best;
}

void gather(const RowReader& row, const int32_t* cids, int64_t n, const Table& ids_of, const Table& eos_ids,
            float* scores) {
  for (int64_t i = 0; i < n; ++i) {
    const int32_t cid = cids[i];
    scores[i] = cid >= 0 && cid == ids_of.size - 1 ? row.end_score(eos_ids) : row.read(ids_of.at(cid));
  }
}

}  // namespace ensemble

#include "select.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "half.h"

namespace ensemble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Entry {
  float value;
  int32_t id;
};

inline bool before(const Entry& a, const Entry& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

// The k best groups by (maximum descending, index ascending), in no particular order. `best` has room for k.
void best_groups(const float* group_max, int64_t groups, size_t k, std::vector<Entry>& best) {
  best.clear();
  // A heap with the worst chosen group on top. Groups come in ascending order, so an equal one never replaces it.
  for (int64_t g = 0; g < groups; ++g) {
    if (best.size() == k && group_max[g] <= best.front().value) continue;
    if (group_max[g] == -kInf) continue;
    if (best.size() == k) {
      std::pop_heap(best.begin(), best.end(), before);
      best.pop_back();
    }
    best.push_back({group_max[g], static_cast<int32_t>(g)});
    std::push_heap(best.begin(), best.end(), before);
  }
}

template <typename Load>
void collect(Load load, int64_t begin, int64_t end, const int32_t* allowed, float floor, std::vector<Entry>& found) {
  for (int64_t i = begin; i < end; ++i) {
    const float value = load(i);
    // `floor` is above -inf or is the lowest finite value; the comparison is false for NaN.
    if (!(value >= floor)) continue;
    if (allowed != nullptr && ((static_cast<uint32_t>(allowed[i / 32]) >> (i % 32)) & 1u) == 0) continue;
    found.push_back({value, static_cast<int32_t>(i)});
  }
}

void collect_group(const void* row, Dtype dtype, int64_t begin, int64_t end, const int32_t* allowed, float floor,
                   std::vector<Entry>& found) {
  switch (dtype) {
    case Dtype::f32:
      return collect([row](int64_t i) { return static_cast<const float*>(row)[i]; }, begin, end, allowed, floor, found);
    case Dtype::f16:
      return collect([row](int64_t i) { return f16_to_float(static_cast<const uint16_t*>(row)[i]); }, begin, end,
                     allowed, floor, found);
    case Dtype::bf16:
      return collect([row](int64_t i) { return bf16_to_float(static_cast<const uint16_t*>(row)[i]); }, begin, end,
                     allowed, floor, found);
  }
}

}  // namespace

void select_topk(const void* row, Dtype dtype, int64_t cols, const int32_t* allowed, const float* group_max, int64_t k,
                 float* values, int32_t* ids) {
  static thread_local std::vector<Entry> groups;
  static thread_local std::vector<Entry> found;
  const int64_t total = ceil_div(cols, kGroup);
  const size_t wanted = static_cast<size_t>(std::min(k, total));
  groups.reserve(wanted + 1);
  best_groups(group_max, total, wanted, groups);

  // If an entry's group was not picked, k groups each hold an entry before it; so nothing below the worst picked
  // maximum is wanted. With fewer than k groups everything above -inf is.
  float floor = std::numeric_limits<float>::lowest();
  if (static_cast<int64_t>(groups.size()) == k) floor = groups.front().value;
  found.clear();
  for (const Entry& group : groups) {
    const int64_t begin = int64_t{group.id} * kGroup;
    collect_group(row, dtype, begin, std::min(begin + kGroup, cols), allowed, floor, found);
  }
  const int64_t n = std::min<int64_t>(k, static_cast<int64_t>(found.size()));
  if (n * 8 < static_cast<int64_t>(found.size())) {
    std::partial_sort(found.begin(), found.begin() + n, found.end(), before);
  } else {
    std::sort(found.begin(), found.end(), before);
  }
  for (int64_t i = 0; i < k; ++i) {
    values[i] = i < n ? found[i].value : -kInf;
    ids[i] = i < n ? found[i].id : -1;
  }
}

}  // namespace ensemble

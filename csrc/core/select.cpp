#include "select.h"

#include <algorithm>
#include <cstring>
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

typedef float Four __attribute__((vector_size(16)));
constexpr int64_t kStep = 16;

// Whether none of kStep values is above `bound`.
inline bool none_above(const float* x, float bound) {
  Four part[4];
  std::memcpy(part, x, sizeof part);
  const Four limit = {bound, bound, bound, bound};
  const auto above = (part[0] > limit) | (part[1] > limit) | (part[2] > limit) | (part[3] > limit);
  int64_t any[2];
  std::memcpy(any, &above, sizeof any);
  return (any[0] | any[1]) == 0;
}

// Puts `entry` in the place of the worst entry of a full heap.
inline void replace_worst(std::vector<Entry>& heap, const Entry& entry) {
  size_t at = 0;
  for (size_t child = 1; child < heap.size(); child = 2 * at + 1) {
    if (child + 1 < heap.size() && before(heap[child], heap[child + 1])) ++child;
    if (!before(entry, heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = entry;
}

// The k best groups by (maximum descending, index ascending), in no particular order. `best` has room for k.
void best_groups(const float* group_max, int64_t groups, size_t k, std::vector<Entry>& best) {
  best.clear();
  // A heap with the worst chosen group on top. Groups come in ascending order, so an equal one never replaces it.
  for (int64_t g = 0; g < groups; ++g) {
    if (best.size() == k) {
      const float worst = best.front().value;
      while (g + kStep <= groups && none_above(group_max + g, worst)) g += kStep;
      if (g == groups) break;
      if (group_max[g] <= worst) continue;
    }
    if (group_max[g] == -kInf) continue;
    const Entry entry{group_max[g], static_cast<int32_t>(g)};
    if (best.size() == k) {
      replace_worst(best, entry);
    } else {
      best.push_back(entry);
      std::push_heap(best.begin(), best.end(), before);
    }
  }
}

void prefetch_group(const char* row, int64_t bytes_per_group, int64_t group) {
  for (int64_t line = 0; line < bytes_per_group; line += 64) __builtin_prefetch(row + group * bytes_per_group + line);
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
  // The groups lie anywhere in the row, most likely outside the nearest cache: ask for all of them at once.
  for (const Entry& group : groups) prefetch_group(static_cast<const char*>(row), kGroup * element_size(dtype), group.id);
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

#include "sample_tokens.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dispatch.h"
#include "half.h"
#include "numerics.h"
#include "pool.h"
#include "sampling.h"
#include "topk_stats.h"

namespace ensemble {
namespace {

constexpr double kSumError = 1e-4;  // stage 1's sums err by less of their value; its documented bound is 1e-5
constexpr size_t kWidestHead = 4096;

// One row as sampling reads it: l = (x - max) / T, -inf for what is not allowed and for NaN, +inf as the largest float32.
struct ScaledRow {
  const void* data;
  Dtype dtype;
  int64_t cols;
  const int32_t* allowed;
  const float* group_max;  // scaled likewise
  float max;  // bounded
  float temperature;

  int64_t groups() const { return ceil_div(cols, kGroup); }
  int64_t width(int64_t group) const { return std::min(kGroup, cols - group * kGroup); }

  // The group's l; returns how many there are.
  int64_t load(int64_t group, float* out) const {
    const int64_t begin = group * kGroup, n = width(group);
    switch (dtype) {
      case Dtype::f32: std::copy_n(static_cast<const float*>(data) + begin, n, out); break;
      case Dtype::f16:
        for (int64_t i = 0; i < n; ++i) out[i] = f16_to_float(static_cast<const uint16_t*>(data)[begin + i]);
        break;
      case Dtype::bf16:
        for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(static_cast<const uint16_t*>(data)[begin + i]);
        break;
    }
    for (int64_t i = 0; i < n; ++i) {
      const float x = out[i] == out[i] ? std::min(out[i], kMaxFloat) : -kInfinity;
      out[i] = (x - max) / temperature;
    }
    if (allowed != nullptr) {
      for (int64_t i = 0; i < n; i += 32) {
        const uint32_t word = static_cast<uint32_t>(allowed[(begin + i) / 32]);
        if (word == ~0u) continue;
        for (int64_t j = i; j < std::min(i + 32, n); ++j) out[j] = (word >> (j - i)) & 1u ? out[j] : -kInfinity;
      }
    }
    return n;
  }
};

struct Entry {
  float log;
  int32_t place;
};

inline bool before(const Entry& a, const Entry& b) { return a.log > b.log || (a.log == b.log && a.place < b.place); }

// Every entry that is above `floor`, or on it too; false where there are more than a head may hold.
bool collect_head(const ScaledRow& row, float floor, bool with_floor, std::vector<Entry>& head) {
  float block[kGroup];
  head.clear();
  for (int64_t g = 0; g < row.groups(); ++g) {
    const float highest = row.group_max[g];
    if (!(highest > floor || (with_floor && highest == floor))) continue;
    const int64_t n = row.load(g, block);
    for (int64_t i = 0; i < n; ++i) {
      if (block[i] > floor || (with_floor && block[i] == floor)) {
        head.push_back({block[i], static_cast<int32_t>(g * kGroup + i)});
      }
    }
    if (head.size() > kWidestHead) return false;
  }
  std::sort(head.begin(), head.end(), before);
  return true;
}

// How many of the sorted head less than `limit` of weight lies before.
size_t kept_of(const std::vector<int64_t>& weights, size_t count, int64_t limit) {
  int64_t sum = 0;
  size_t kept = 0;
  for (; kept < count && sum < limit; ++kept) sum += weights[kept];
  return kept;
}

// Fills `weights` with those of the head; returns their sum.
int64_t weigh(const std::vector<Entry>& head, std::vector<int64_t>& weights) {
  static thread_local std::vector<float> exponentials;
  exponentials.assign((head.size() + 15) / 16 * 16, 0.0f);
  for (size_t i = 0; i < head.size(); ++i) exponentials[i] = head[i].log;
  kernels().exp(exponentials.data(), static_cast<int64_t>(exponentials.size()));
  weights.resize(head.size());
  int64_t total = 0;
  for (size_t i = 0; i < head.size(); ++i) total += weights[i] = whole_weight(exponentials[i]);
  return total;
}

// Top-k and top-p from the head of a row alone: its largest entries, as many as are needed. False where the head is too
// wide, or where the rest's mass, which stage 1 knows to 1e-4, does not settle where top-p ends.
bool cut_in_head(const ScaledRow& row, double log_total, const SamplingSettings& settings, Cut& cut) {
  static thread_local std::vector<Entry> head;
  static thread_local std::vector<int64_t> weights;
  static thread_local std::vector<float> maxima;
  const int64_t groups = row.groups();
  const auto nth_maximum = [&](int64_t n) {
    maxima.assign(row.group_max, row.group_max + groups);
    std::nth_element(maxima.begin(), maxima.begin() + n, maxima.end(), std::greater<float>());
    return maxima[static_cast<size_t>(n)];
  };
  if (settings.top_k > 0) {
    // k groups reach the k-th largest maximum, so at least k entries do.
    if (settings.top_k > groups || settings.top_k > static_cast<int64_t>(kWidestHead)) return false;
    const float floor = nth_maximum(settings.top_k - 1);
    if (floor == -kInfinity || !collect_head(row, floor, true, head)) return false;
    const float kth = head[static_cast<size_t>(settings.top_k - 1)].log;
    while (head.back().log < kth) head.pop_back();
    size_t kept = head.size();
    if (settings.top_p < 1.0f) {
      const double total = static_cast<double>(weigh(head, weights));
      kept = kept_of(weights, kept, nucleus_limit(settings.top_p, total));
    }
    cut.log = head[kept - 1].log;
    cut.place = head[kept - 1].place;
    return true;
  }
  const double sum = std::exp(log_total);  // Σ e^(x − max)
  // No entry weighs more than 1, so the head has at least as many as its mass says.
  if (row.temperature == 1.0f && static_cast<double>(settings.top_p) * sum > kWidestHead) return false;
  for (int64_t wanted = 16; wanted < groups / 2; wanted *= 4) {
    const float floor = nth_maximum(wanted);
    if (floor == -kInfinity || !collect_head(row, floor, false, head)) return false;
    const double mass = static_cast<double>(weigh(head, weights));
    // What is not in the head has l <= floor, so e^l <= e^(T l) e^((1 - T) floor).
    double inside = 0.0;
    for (const Entry& e : head) inside += std::exp(static_cast<double>(e.log) * row.temperature);
    const double rest = std::max(0.0, sum * (1.0 + kSumError) - inside);
    double outside = rest * std::exp((1.0 - static_cast<double>(row.temperature)) * floor);
    if (row.temperature > 1.0f) {
      // Above 1 that does not hold; there, no entry of a group is above its maximum, or above the floor.
      maxima.assign(static_cast<size_t>((groups + 15) / 16 * 16), -kInfinity);
      for (int64_t g = 0; g < groups; ++g) maxima[static_cast<size_t>(g)] = std::min(row.group_max[g], floor);
      kernels().exp(maxima.data(), static_cast<int64_t>(maxima.size()));
      outside = 0.0;
      for (int64_t g = 0; g < groups; ++g) outside += 1.0001 * kGroup * maxima[static_cast<size_t>(g)];
    }
    const double most = mass + kWeightUnit * outside + static_cast<double>(groups * kGroup);
    const double least = row.temperature == 1.0f ? std::max(mass, kWeightUnit * sum * (1.0 - kSumError)) : mass;
    const int64_t farthest = nucleus_limit(settings.top_p, most);
    if (mass < static_cast<double>(farthest)) continue;
    const size_t kept = kept_of(weights, head.size(), farthest);
    if (kept != kept_of(weights, head.size(), nucleus_limit(settings.top_p, least))) return false;
    cut.log = head[kept - 1].log;
    cut.place = head[kept - 1].place;
    return true;
  }
  return false;
}

float* whole_row(const ScaledRow& row) {
  static thread_local std::vector<float> logs;
  logs.resize(static_cast<size_t>(row.groups() * kGroup));
  for (int64_t g = 0; g < row.groups(); ++g) row.load(g, logs.data() + g * kGroup);
  return logs.data();
}

Cut cut_of(const ScaledRow& row, double log_total, const SamplingSettings& settings) {
  Cut cut;
  cut.least = log_float(settings.min_p);
  if (settings.top_k <= 0 && settings.top_p >= 1.0f) return cut;
  if (!cut_in_head(row, log_total, settings, cut)) return find_cut(whole_row(row), row.cols, 0.0f, settings);
  return cut;
}

int32_t draw_row(const ScaledRow& row, int32_t best_id, double log_total, const int32_t* numbers,
                 const SamplingSettings& settings) {
  const Cut cut = cut_of(row, log_total, settings);
  Draw draw{row.cols};
  float block[kGroup];
  const auto take = [&](int64_t g) {
    const int64_t n = row.load(g, block);
    draw_block(block, n, g * kGroup, numbers == nullptr ? nullptr : numbers + g * kGroup, cut, settings, draw);
  };
  const int64_t first = best_id / kGroup;  // a high score at once spares most of the others their noise
  take(first);
  for (int64_t g = 0; g < row.groups(); ++g) {
    const float highest = row.group_max[g];
    if (g == first || !cut.may_keep(highest) || highest + kLargestGumbel < draw.score) continue;
    take(g);
  }
  return static_cast<int32_t>(draw.place);
}

// Runs body(row, scaled row, id of the maximum, log Σ e^(x − max), settings); a row of nothing has id -1.
template <typename Body>
void for_rows(const SampleInput& in, int threads, Body body) {
  const int64_t rows = in.logits.rows;
  const size_t count = static_cast<size_t>(rows);
  std::vector<float> largest(count), logsumexp(count), entropy(count);
  std::vector<int32_t> best(count), flags(count);
  const std::vector<TopkRequest> requests{
      {in.logits, in.allowed, 1, largest.data(), best.data(), logsumexp.data(), entropy.data(), flags.data()}};
  TopkStages& stages = thread_stages();
  stages.stream(requests, threads);
  parallel_for(threads, rows, 1, [&](int64_t row) {
    stages.finish_row(0, row);
    const SampleSettings& s = in.settings;
    const float temperature = s.temperature[row];
    static thread_local std::vector<float> maxima;
    const int64_t groups = group_count(in.logits.cols);
    const float* const raw = stages.group_maxima(0, row);
    ScaledRow scaled{row_pointer(in.logits, row), in.logits.dtype, in.logits.cols, in.allowed.row(row),
                     nullptr, bounded(largest[row]), temperature > 0.0f ? temperature : 1.0f};
    maxima.resize(static_cast<size_t>(groups));
    for (int64_t g = 0; g < groups; ++g) {
      maxima[static_cast<size_t>(g)] = (std::min(raw[g], kMaxFloat) - scaled.max) / scaled.temperature;
    }
    scaled.group_max = maxima.data();
    const SamplingSettings settings{temperature, s.top_k[row], s.top_p[row], s.min_p[row],
                                    s.seed[row], s.row[row],   s.step[row]};
    body(row, scaled, best[row], static_cast<double>(stages.log_total(0, row)), settings);
  });
}

}  // namespace

void sample_tokens(const SampleInput& in, int32_t* ids, int threads) {
  for_rows(in, threads, [&](int64_t row, const ScaledRow& scaled, int32_t best, double log_total,
                            const SamplingSettings& settings) {
    const int32_t* const numbers = in.numbers == nullptr ? nullptr : in.numbers + row * in.logits.cols;
    const bool greedy = best < 0 || !(settings.temperature > 0.0f);
    ids[row] = greedy ? best : draw_row(scaled, best, log_total, numbers, settings);
  });
}

void token_probs(const SampleInput& in, float* probs, int threads) {
  for_rows(in, threads, [&](int64_t row, const ScaledRow& scaled, int32_t best, double log_total,
                            const SamplingSettings& settings) {
    static thread_local std::vector<float> kept, work;
    const int64_t n = in.logits.cols;
    float* const out = probs + row * n;
    if (best < 0) {
      std::fill(out, out + n, 0.0f);
      return;
    }
    const Cut cut = cut_of(scaled, log_total, settings);
    const float* const logs = whole_row(scaled);
    kept.assign(logs, logs + scaled.groups() * kGroup);
    kernels().exp(kept.data(), scaled.groups() * kGroup);
    for (int64_t i = 0; i < n; ++i) kept[i] = cut.keeps(logs[i], i) ? kept[i] : 0.0f;
    const float total = tree_sum(n, work, [](int64_t i) { return kept[i]; });
    for (int64_t i = 0; i < n; ++i) out[i] = kept[i] / total;
  });
}

}  // namespace ensemble

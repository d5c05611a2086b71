#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "numerics.h"

namespace ensemble {
namespace {

constexpr double kLargestGumbel = 17.5;  // -log(-log(1 - 2^-25)) is 17.33

uint32_t philox_first_word(uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    if (round != 0) {
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    const uint64_t first = uint64_t{0xD2511F53u} * x0;
    const uint64_t second = uint64_t{0xCD9E8D57u} * x2;
    x0 = static_cast<uint32_t>(second >> 32) ^ x1 ^ k0;
    x1 = static_cast<uint32_t>(second);
    x2 = static_cast<uint32_t>(first >> 32) ^ x3 ^ k1;
    x3 = static_cast<uint32_t>(first);
  }
  return x0;
}

// out[i] = sum of x[0 .. i), the same additions as doubling shifts on a whole row make.
void exclusive_scan(const std::vector<float>& x, std::vector<float>& out) {
  const int64_t n = static_cast<int64_t>(x.size());
  out.assign(x.size(), 0.0f);
  std::copy(x.begin(), x.end() - 1, out.begin() + 1);
  for (int64_t shift = 1; shift < n; shift *= 2) {
    for (int64_t i = n - 1; i >= shift; --i) out[i] += out[i - shift];
  }
}

// Sets log[i] to -inf where top-k, top-p or min-p leave candidate i out.
void filter(float* log, int64_t n, const SamplingSettings& settings) {
  static thread_local std::vector<int32_t> order;
  static thread_local std::vector<float> weight, before, work;
  order.resize(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [log](int32_t a, int32_t b) { return log[a] > log[b]; });
  const float top = log[order[0]];
  if (top == -kInfinity) return;
  float kth = -kInfinity;
  if (settings.top_k > 0) kth = log[order[std::min<int64_t>(settings.top_k, n) - 1]];
  const float least = log_float(settings.min_p);

  size_t kept = static_cast<size_t>(n);
  if (settings.top_p < 1.0f) {
    weight.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) weight[i] = log[order[i]] >= kth ? exp_float(log[order[i]] - top) : 0.0f;
    exclusive_scan(weight, before);
    const float mass = settings.top_p * tree_sum(n, work, [](int64_t i) { return weight[i]; });
    kept = 1;
    while (kept < static_cast<size_t>(n) && before[kept] < mass) ++kept;
  }
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    float& value = log[order[i]];
    if (i >= kept || value < kth || !(value - top >= least)) value = -kInfinity;
  }
}

}  // namespace

double gumbel(int32_t cid, int64_t seed, int64_t row, int64_t step) {
  const auto low = [](int64_t word) { return static_cast<uint32_t>(static_cast<uint64_t>(word)); };
  const auto high = [](int64_t word) { return static_cast<uint32_t>(static_cast<uint64_t>(word) >> 32); };
  const uint32_t word =
      philox_first_word(static_cast<uint32_t>(cid), low(row), low(step), high(row), low(seed), high(seed));
  const double uniform = (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
  return -std::log(-std::log(uniform));
}

int64_t sample(const float* probs, const int32_t* cids, int64_t n, const SamplingSettings& settings) {
  static thread_local std::vector<float> log;
  log.resize(static_cast<size_t>(n));
  float top = -kInfinity;
  for (int64_t i = 0; i < n; ++i) {
    log[i] = probs[i] > 0.0f ? log_float(probs[i]) / settings.temperature : -kInfinity;
    top = std::max(top, log[i]);
  }
  if (top == -kInfinity) return n;
  if (settings.top_k > 0 || settings.top_p < 1.0f || settings.min_p > 0.0f) filter(log.data(), n, settings);

  // The largest log E_T + g, the smaller index among equals. Candidates that even the largest noise could not lift
  // above the best score so far need no noise.
  int64_t best = n;
  double best_score = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (log[i] == -kInfinity || log[i] + kLargestGumbel < best_score) continue;
    const int32_t cid = cids == nullptr ? static_cast<int32_t>(i) : cids[i];
    const double score = log[i] + gumbel(cid, settings.seed, settings.row, settings.step);
    if (score > best_score) {
      best_score = score;
      best = i;
    }
  }
  return best;
}

}  // namespace ensemble

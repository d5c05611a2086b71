#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "dispatch.h"
#include "numerics.h"

namespace ensemble {
namespace {

constexpr int64_t kBlock = 128;
constexpr int64_t kSorted = 512;  // so few candidates are sorted; more are selected by radix

// The word of one counter; the loops over a block below inline it, and the compiler takes several at once.
inline uint32_t philox_first_word(uint32_t x0, uint32_t x1, uint32_t x2, uint32_t x3, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * x0;
    const uint64_t second = uint64_t{0xCD9E8D57u} * x2;
    x0 = static_cast<uint32_t>(second >> 32) ^ x1 ^ k0;
    x1 = static_cast<uint32_t>(second);
    x2 = static_cast<uint32_t>(first >> 32) ^ x3 ^ k1;
    x3 = static_cast<uint32_t>(first);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x0;
}

inline uint32_t low(int64_t word) { return static_cast<uint32_t>(static_cast<uint64_t>(word)); }
inline uint32_t high(int64_t word) { return static_cast<uint32_t>(static_cast<uint64_t>(word) >> 32); }

inline double gumbel_of(uint32_t word) {
  const double uniform = (static_cast<double>(word >> 8) + 0.5) * 0x1p-24;
  return -std::log(-std::log(uniform));
}

// At least the noise of a word: -log(-log r) <= -log(1 - r), of which only the exponent is looked at.
inline double gumbel_bound(uint32_t word) {
  const uint32_t rest = 0x00ffffffu - (word >> 8);  // 2^24 (1 - r) - 1/2
  return 0.6931471805599454 * (25 - std::bit_width(rest));
}

// Unsigned integers in the order of falling floats.
inline uint32_t falling(float x) {
  uint32_t bits;
  x += 0.0f;  // -0 is 0
  std::memcpy(&bits, &x, sizeof bits);
  return (bits & 0x80000000u) ? bits : ~bits & 0x7fffffffu;
}

// Weights of log[0 .. n) above or on `floor`; `out` has room for n rounded up to a multiple of 16.
void whole_weights(const float* log, int64_t n, float top, float floor, int64_t* out) {
  constexpr int64_t kPiece = 512;
  float e[kPiece];
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t width = std::min(kPiece, n - begin);
    for (int64_t i = 0; i < width; ++i) e[i] = log[begin + i] - top;
    for (int64_t i = width; i % 16 != 0; ++i) e[i] = 0.0f;
    kernels().exp(e, (width + 15) / 16 * 16);
    for (int64_t i = 0; i < width; ++i) out[begin + i] = log[begin + i] >= floor ? whole_weight(e[i]) : 0;
  }
}

// The last element, in the order (log falling, place rising), that less than limit_of(total) of `weight` lies before.
// The weight of an element depends on its log alone; those without are passed over. total >= limit_of(total) >= 1.
template <typename LimitOf>
Cut radix_cut(const float* log, int64_t n, const int64_t* weight, LimitOf limit_of) {
  static thread_local std::vector<int32_t> inside, next;
  constexpr int kShift[3] = {21, 10, 0};
  constexpr uint32_t kMask[3] = {0x7ff, 0x7ff, 0x3ff};
  constexpr uint32_t kDigits = 2048;
  static thread_local std::vector<int64_t> sums;
  sums.assign(2 * kDigits, 0);
  if (static_cast<int64_t>(inside.size()) < n) inside.resize(static_cast<size_t>(n));
  if (static_cast<int64_t>(next.size()) < n) next.resize(static_cast<size_t>(n));
  int64_t left = n;  // how many of `inside` are still in question
  const auto digit_of = [&](int level, int64_t i) { return (falling(log[i]) >> kShift[level]) & kMask[level]; };
  // Neighbours are often alike: two tables, so that one need not wait for the other's sum.
  for (int64_t i = 0; i < n; ++i) sums[(i & 1) * kDigits + digit_of(0, i)] += weight[i];
  int64_t total = 0;
  for (uint32_t d = 0; d < kDigits; ++d) total += sums[d] += sums[kDigits + d];
  const int64_t limit = limit_of(total);
  int64_t before = 0;
  for (int level = 0; level < 3; ++level) {
    if (level > 0) {
      sums.assign(kDigits, 0);
      for (int64_t j = 0; j < left; ++j) sums[digit_of(level, inside[j])] += weight[inside[j]];
    }
    uint32_t digit = 0;
    int64_t sum = before;
    for (uint32_t d = 0; d < kDigits && sum < limit; ++d) {
      if (sums[d] == 0) continue;
      digit = d;
      before = sum;
      sum += sums[d];
    }
    // Without branches: whether an element has the digit is anybody's guess.
    int64_t count = 0;
    if (level == 0) {
      for (int64_t i = 0; i < n; ++i) {
        next[count] = static_cast<int32_t>(i);
        count += digit_of(0, i) == digit;
      }
    } else {
      for (int64_t j = 0; j < left; ++j) {
        const int32_t i = inside[j];
        next[count] = i;
        count += digit_of(level, i) == digit;
      }
    }
    left = count;
    inside.swap(next);
  }
  // What is left are equals, in ascending order of their places.
  const int64_t each = weight[inside[0]];
  const int64_t kept = std::min<int64_t>((limit - before + each - 1) / each, left);
  return {log[inside[0]], inside[kept - 1]};
}

Cut sorted_cut(const float* log, int64_t n, float top, const SamplingSettings& settings, int64_t* weight) {
  static thread_local std::vector<int32_t> order;
  order.resize(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [log](int32_t a, int32_t b) { return log[a] > log[b]; });
  int64_t kept = n;
  if (settings.top_k > 0) {
    const float kth = log[order[static_cast<size_t>(std::min<int64_t>(settings.top_k, n) - 1)]];
    while (kept > 1 && log[order[static_cast<size_t>(kept - 1)]] < kth) --kept;
  }
  if (settings.top_p < 1.0f) {
    whole_weights(log, n, top, -kInfinity, weight);
    int64_t total = 0;
    for (int64_t i = 0; i < kept; ++i) total += weight[order[static_cast<size_t>(i)]];
    const int64_t limit = nucleus_limit(settings.top_p, static_cast<double>(total));
    int64_t before = 0, i = 0;
    for (; i < kept && before < limit; ++i) before += weight[order[static_cast<size_t>(i)]];
    kept = i;
  }
  const int32_t last = order[static_cast<size_t>(kept - 1)];
  return {log[last], last};
}

// Top-k and top-p of more candidates than are sorted.
Cut selected_cut(const float* log, int64_t n, float top, const SamplingSettings& settings, int64_t* weight) {
  Cut cut;
  if (settings.top_k > 0 && settings.top_k < n) {
    int64_t alive = 0;
    for (int64_t i = 0; i < n; ++i) alive += weight[i] = log[i] > -kInfinity;
    if (settings.top_k < alive) {
      cut.log = radix_cut(log, n, weight, [&](int64_t) { return int64_t{settings.top_k}; }).log;
    }
  }
  if (settings.top_p < 1.0f) {
    whole_weights(log, n, top, cut.log, weight);
    cut = radix_cut(log, n, weight,
                    [&](int64_t total) { return nucleus_limit(settings.top_p, static_cast<double>(total)); });
  }
  return cut;
}

}  // namespace

int64_t nucleus_limit(float top_p, double total) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(static_cast<double>(top_p) * total)));
}

Cut find_cut(const float* log, int64_t n, float top, const SamplingSettings& settings) {
  static thread_local std::vector<int64_t> weight;
  if (static_cast<int64_t>(weight.size()) < n) weight.resize(static_cast<size_t>(n));
  Cut cut;
  if (settings.top_k > 0 || settings.top_p < 1.0f) {
    cut = (n <= kSorted ? sorted_cut : selected_cut)(log, n, top, settings, weight.data());
  }
  cut.top = top;
  cut.least = log_float(settings.min_p);
  return cut;
}

double gumbel(int32_t cid, int64_t seed, int64_t row, int64_t step) {
  return gumbel_of(philox_first_word(static_cast<uint32_t>(cid), low(row), low(step), high(row), low(seed), high(seed)));
}

void draw_block(const float* log, int64_t n, int64_t first, const int32_t* numbers, const Cut& cut,
                const SamplingSettings& settings, Draw& draw) {
  // Noise for those alone that are kept and that the largest noise could lift above the best so far.
  int32_t kept[kBlock];
  int64_t count = 0;
  const float within = static_cast<float>(draw.score - kLargestGumbel - 0.1);
  for (int64_t i = 0; i < n; ++i) {
    kept[count] = static_cast<int32_t>(i);
    count += (log[i] >= within) & (log[i] >= cut.log) & (log[i] - cut.top >= cut.least);
  }
  uint32_t words[kBlock];
  for (int64_t j = 0; j < count; ++j) {
    const int64_t number = numbers == nullptr ? first + kept[j] : numbers[kept[j]];
    words[j] = philox_first_word(static_cast<uint32_t>(number), low(settings.row), low(settings.step),
                                 high(settings.row), low(settings.seed), high(settings.seed));
  }
  for (int64_t j = 0; j < count; ++j) {
    // Only candidates whose own noise may lift them above the best so far need its logarithms.
    const int64_t i = kept[j];
    if (log[i] + gumbel_bound(words[j]) < draw.score) continue;
    if (!cut.keeps(log[i], first + i)) continue;
    const double score = log[i] + gumbel_of(words[j]);
    if (score > draw.score || (score == draw.score && first + i < draw.place)) draw = {first + i, score};
  }
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
  const Cut cut = find_cut(log.data(), n, top, settings);
  Draw draw{n};
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t width = std::min(kBlock, n - i);
    const float highest = *std::max_element(log.data() + i, log.data() + i + width);
    if (!cut.may_keep(highest) || highest + kLargestGumbel < draw.score) continue;
    draw_block(log.data() + i, width, i, cids == nullptr ? nullptr : cids + i, cut, settings, draw);
  }
  return draw.place;
}

}  // namespace ensemble

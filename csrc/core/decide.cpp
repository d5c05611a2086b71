#include "decide.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dispatch.h"
#include "numerics.h"
#include "types.h"

namespace ensemble {
namespace {

// Below this float32 turns denormal; p log p there is beneath every sum's rounding.
constexpr float kSmallest = std::numeric_limits<float>::min();

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

void exact_exp(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = exp_float(x[i]);
}
void exact_log(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = log_float(x[i]);
}
void isa_exp(float* x, int64_t n) { kernels().exp(x, padded(n)); }
void isa_log(float* x, int64_t n) { kernels().log(x, padded(n)); }

struct Scratch {
  std::vector<float> mean, geometric, sharp, terms, mix, work, weights, mix_weights, rest;
};

Scratch& scratch() {
  static thread_local Scratch buffers;
  return buffers;
}

float* room(std::vector<float>& buffer, int64_t n) {
  if (static_cast<int64_t>(buffer.size()) < padded(n) + 16) buffer.resize(static_cast<size_t>(padded(n)) + 16);
  return buffer.data();
}

float maximum(const float* x, int64_t n) {
  float top = -kInfinity;
  for (int64_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  return top;
}

// The row's weights over the models that are present, renormalised; all 0 where none of positive weight is.
void effective_weights(const float* weights, int64_t models, const uint8_t* present, float* out) {
  float total = 0.0f;
  for (int64_t m = 0; m < models; ++m) total += out[m] = present[m] ? weights[m] : 0.0f;
  for (int64_t m = 0; m < models; ++m) out[m] = total > 0.0f ? out[m] / total : 0.0f;
}

void normalise(float* x, int64_t n, std::vector<float>& work) {
  const float total = tree_sum(n, work, [x](int64_t i) { return x[i]; });
  for (int64_t i = 0; i < n; ++i) x[i] = total > 0.0f ? x[i] / total : 0.0f;
}

// exp Σ w_m log q_m, normalised; 0 where a model of positive weight has q = 0. False where that leaves nothing.
bool geometric_mean(const Distributions& d, const float* weights, const Transcendentals& math, float* out,
                    std::vector<float>& work) {
  const bool weightless = std::all_of(weights, weights + d.models, [](float w) { return w == 0.0f; });
  for (int64_t i = 0; i < d.n; ++i) {
    float total = 0.0f;
    bool dead = weightless;
    for (int64_t m = 0; m < d.models; ++m) {
      const float log_q = d.log_q[m * d.stride + i];
      if (!(weights[m] > 0.0f)) continue;
      if (log_q == -kInfinity) {
        dead = true;
      } else {
        total += weights[m] * log_q;
      }
    }
    out[i] = dead ? -kInfinity : total;
  }
  const float top = maximum(out, d.n);
  if (top == -kInfinity) return false;
  for (int64_t i = 0; i < d.n; ++i) out[i] -= top;
  math.exp(out, d.n);
  normalise(out, d.n, work);
  return true;
}

// −Σ p log p in nats.
float entropy(const float* p, int64_t n, const Transcendentals& math, Scratch& s) {
  float* const terms = room(s.terms, n);
  for (int64_t i = 0; i < n; ++i) terms[i] = p[i] > kSmallest ? p[i] : 1.0f;
  math.log(terms, n);
  return std::max(0.0f, -tree_sum(n, s.work, [&](int64_t i) { return p[i] > kSmallest ? p[i] * terms[i] : 0.0f; }));
}

// KL(p_m ‖ Σ w_j p_j) over the candidates and one bucket for the rest; returns Σ w_m KL_m.
float divergences(const Distributions& d, const float* weights, const Transcendentals& math, Scratch& s, float* kl,
                  int64_t kl_stride) {
  const int64_t n = d.n;
  float* const rest = room(s.rest, d.models);
  float* const mix = room(s.mix, n + 1);
  std::fill(mix, mix + n + 1, 0.0f);
  for (int64_t m = 0; m < d.models; ++m) {
    float* const p = d.p + m * d.stride;
    rest[m] = std::max(0.0f, 1.0f - tree_sum(n, s.work, [p](int64_t i) { return p[i]; }));
    const float last = rest[m];
    const float total = tree_sum(n + 1, s.work, [p, n, last](int64_t i) { return i < n ? p[i] : last; });
    const float scale = total > 0.0f ? total : 1.0f;
    for (int64_t i = 0; i < n; ++i) {
      p[i] /= scale;
      mix[i] += p[i] * weights[m];
    }
    rest[m] /= scale;
    mix[n] += rest[m] * weights[m];
  }
  float js = 0.0f;
  for (int64_t m = 0; m < d.models; ++m) {
    float divergence = 0.0f;
    if (weights[m] > 0.0f) {
      const float* const p = d.p + m * d.stride;
      float* const terms = room(s.terms, n + 1);
      const auto p_of = [p, n, last = rest[m]](int64_t i) { return i < n ? p[i] : last; };
      for (int64_t i = 0; i < n; ++i) terms[i] = p[i] > kSmallest && mix[i] > kSmallest ? p[i] / mix[i] : 1.0f;
      terms[n] = rest[m] > kSmallest && mix[n] > kSmallest ? rest[m] / mix[n] : 1.0f;
      math.log(terms, n + 1);
      divergence = std::max(0.0f, tree_sum(n + 1, s.work, [&](int64_t i) { return p_of(i) * terms[i]; }));
    }
    kl[m * kl_stride] = divergence;
    js += weights[m] * divergence;
  }
  return js;
}

bool gate_is_open(const FuseSettings& f, int64_t row, float primary_probability, float largest_kl, float js) {
  switch (f.gate[row]) {
    case kGateMaxProb: return primary_probability < f.gate_threshold[row];
    case kGateKl: return largest_kl > f.gate_threshold[row];
    case kGateJs: return js > f.gate_threshold[row];
    default: return true;
  }
}

bool sharpening_fires(const FuseSettings& f, int64_t row, float max_prob, float row_entropy, int64_t count) {
  if (f.sharpen[row] <= kSharpenNone) return false;
  if (f.trigger[row] != kByEntropy) return max_prob < f.threshold[row];
  const float widest = log_float(static_cast<float>(std::max<int64_t>(count, 1)));
  return count > 1 && row_entropy > f.threshold[row] * widest;
}

// Position of a candidate among the ascending ones, n where it is not there.
int64_t position_of(const Distributions& d, int32_t cid, int64_t candidates) {
  if (d.cids == nullptr) return cid < d.n ? cid : d.n;
  const int32_t* const end = d.cids + candidates;
  const int32_t* const at = std::lower_bound(d.cids, end, cid);
  return at != end && *at == cid ? at - d.cids : d.n;
}

// E'(u) = E(u) + Σ E(v) over the v ≠ u that start with u (SAFE, arXiv 2510.15346, section 3.3), for the primary's best u
// with E(u) > min_prob, neither the single space nor END. Several ids of one candidate raise it once.
void sharpen_prefixes(const Distributions& d, const PrimaryChoice& primary, const PrefixRanges& prefixes,
                      const float* mean, float min_prob, int64_t top_k, int64_t candidates, float* sharp) {
  const int64_t count = std::min(primary.top_count, top_k);
  for (int64_t j = 0; j < count; ++j) {
    const int32_t u = primary.top_cids[j];
    if (u < 0 || u == prefixes.space_cid || u >= prefixes.size - 1) continue;
    const int64_t at = position_of(d, u, candidates);
    if (at == d.n || !(mean[at] > min_prob)) continue;
    double continuations = 0.0;
    for (int64_t i = at + 1; i < candidates; ++i) {
      const int64_t v = d.cids == nullptr ? i : d.cids[i];
      if (v >= prefixes.end[u]) break;
      continuations += mean[i];
    }
    sharp[at] = mean[at] + static_cast<float>(continuations);
  }
}

}  // namespace

const Transcendentals kExact = {exact_exp, exact_log};

Transcendentals vectorised_transcendentals() { return {isa_exp, isa_log}; }

void log_softmax(const float* scores, int64_t n, float* log_q) {
  static thread_local std::vector<float> weight, work;
  float top = -kInfinity;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, bounded(scores[i]));
  if (top == -kInfinity) top = 0.0f;
  weight.resize(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    log_q[i] = std::max(bounded(scores[i]) - top, kFloor);
    weight[i] = log_q[i] > kFloor ? exp_float(log_q[i]) : 0.0f;
  }
  const float total = tree_sum(n, work, [](int64_t i) { return weight[i]; });
  const float log_total = total > 0.0f ? log_float(total) : 0.0f;
  for (int64_t i = 0; i < n; ++i) log_q[i] = log_q[i] > kFloor ? log_q[i] - log_total : -kInfinity;
}

Decision decide(const Distributions& d, const PrimaryChoice& primary, const PrefixRanges& prefixes,
                const FuseSettings& f, int64_t row, const Transcendentals& math, float* probs, float* kl,
                int64_t kl_stride) {
  Scratch& s = scratch();
  const int64_t n = d.n;
  const float* const row_weights = f.weights + row * d.models;
  const auto is_inside = [&](int64_t i) { return d.inside != nullptr ? d.inside[i] != 0 : d.cids[i] >= 0; };
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += is_inside(i);
  const int64_t candidates = d.cids == nullptr ? n : count;  // where ascending candidate ids end

  // E: the weighted mean over the models that have any of the candidates.
  std::vector<uint8_t> present(static_cast<size_t>(d.models));
  for (int64_t m = 0; m < d.models; ++m) present[m] = maximum(d.log_q + m * d.stride, n) > -kInfinity;
  float* const weights = room(s.weights, d.models);
  effective_weights(row_weights, d.models, present.data(), weights);
  const bool wants_geometric = f.aggregate[row] == kGeometric || f.sharpen[row] == kSharpenGeometric;
  float* const geometric = room(s.geometric, n);
  const bool has_geometric = wants_geometric && geometric_mean(d, weights, math, geometric, s.work);
  float* mean = room(s.mean, n);
  std::fill(mean, mean + n, 0.0f);
  for (int64_t m = 0; m < d.models; ++m) {
    float* q = d.p + m * d.stride;
    if (!d.p_is_exp_log_q) {
      q = room(s.terms, n);
      std::copy(d.log_q + m * d.stride, d.log_q + m * d.stride + n, q);
      math.exp(q, n);
    }
    for (int64_t i = 0; i < n; ++i) mean[i] += q[i] * weights[m];
  }
  const float* const arithmetic_or_geometric = has_geometric ? geometric : mean;
  if (f.aggregate[row] == kGeometric && has_geometric) std::copy(geometric, geometric + n, mean);

  float* const mix_weights = room(s.mix_weights, d.models);
  effective_weights(row_weights, d.models, d.consulted, mix_weights);
  Decision out{};
  out.js = divergences(d, mix_weights, math, s, kl, kl_stride);
  float largest_kl = 0.0f;
  for (int64_t m = 0; m < d.models; ++m) largest_kl = std::max(largest_kl, kl[m * kl_stride]);
  out.max_prob = std::max(0.0f, maximum(mean, n));
  out.entropy = entropy(mean, n, math, s);
  const bool possible = out.max_prob > 0.0f;
  const bool is_open = gate_is_open(f, row, primary.probability, largest_kl, out.js);
  out.ensembled = is_open && possible;
  out.sharpened = out.ensembled && sharpening_fires(f, row, out.max_prob, out.entropy, count);

  const int32_t kind = out.sharpened ? f.sharpen[row] : kSharpenNone;
  float* const sharp = room(s.sharp, n);
  std::copy(mean, mean + n, sharp);
  if (kind == kSharpenGeometric) std::copy(arithmetic_or_geometric, arithmetic_or_geometric + n, sharp);
  if (kind == kSharpenPrefix) {
    sharpen_prefixes(d, primary, prefixes, mean, f.min_prob[row], f.top_k[row], candidates, sharp);
  }
  // Temperature keeps the order of E, so the argmax is taken before it.
  int64_t best = n;
  const float highest = maximum(sharp, n);
  for (int64_t i = 0; i < n && best == n; ++i) {
    if (sharp[i] == highest && is_inside(i)) best = i;
  }
  if (kind == kSharpenTemperature) {
    const float log_top = log_float(out.max_prob);
    for (int64_t i = 0; i < n; ++i) sharp[i] = mean[i] > 0.0f ? (log_float(mean[i]) - log_top) / f.tau[row] : -kInfinity;
    math.exp(sharp, n);
  }
  normalise(sharp, n, s.work);
  std::copy(sharp, sharp + n, probs);

  int64_t position = best;
  if (f.temperature[row] > 0.0f && possible) {
    position = sample(probs, d.cids, n,
                      {f.temperature[row], f.sample_top_k[row], f.top_p[row], f.min_p[row], f.seed[row], f.row[row],
                       f.step[row]});
  }
  out.choice = primary.cid;
  if (is_open) {
    out.choice = -1;
    if (possible && position < n) out.choice = d.cids == nullptr ? static_cast<int32_t>(position) : d.cids[position];
  }
  out.flags = possible ? 0 : kFlagEmpty;
  return out;
}

}  // namespace ensemble

// Scalar rules that every operator shares: what infinities and NaN count as, and sums in a fixed order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ensemble {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kFloor = -1000.0f;  // e to anything below is 0; keeps 0 * infinity out of the sums

// exp and log of single numbers: float64 rounded once, so that e.g. exp(-log 2) is exactly one half.
inline float exp_float(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }
inline float log_float(float x) { return static_cast<float>(std::log(static_cast<double>(x))); }

// +inf as the largest finite float32, NaN as -inf.
inline float bounded(float x) { return std::isnan(x) ? -kInfinity : std::min(x, kMaxFloat); }

// exp(value - logsumexp), at most 1; 0 where either is -inf, 1 where both are +inf.
inline float probability(float value, float logsumexp) {
  value = bounded(value);
  logsumexp = bounded(logsumexp);
  if (value == -kInfinity || logsumexp == -kInfinity) return 0.0f;
  return exp_float(std::min(value - logsumexp, 0.0f));
}

// Sum of x(0) .. x(n - 1) by halving the range, padded with zeros to a power of two; `work` is scratch.
template <typename Term>
float tree_sum(int64_t n, std::vector<float>& work, Term x) {
  if (n == 0) return 0.0f;
  int64_t width = 1;
  while (width < n) width *= 2;
  if (width == 1) return x(0);
  width /= 2;
  if (static_cast<int64_t>(work.size()) < width) work.resize(static_cast<size_t>(width));
  float* const w = work.data();
  const int64_t paired = n - width;
  for (int64_t i = 0; i < paired; ++i) w[i] = x(i) + x(i + width);
  for (int64_t i = paired; i < width; ++i) w[i] = x(i);
  while (width > 1) {
    width /= 2;
    for (int64_t i = 0; i < width; ++i) w[i] += w[i + width];
  }
  return w[0];
}

}  // namespace ensemble

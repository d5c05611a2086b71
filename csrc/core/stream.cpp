#include "stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dispatch.h"
#include "half.h"

namespace ensemble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();  // what +inf counts as in sums
constexpr float kFarthest = 0x1p20f;  // beyond this what rounding leaves of the shift is no longer small: float64 it is

struct alignas(64) Scratch {
  unsigned char bytes[kChunk * 4];
};

uint32_t minus_infinity(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return 0xff800000u;
    case Dtype::f16: return 0xfc00u;
    default: return 0xff80u;
  }
}

// Magnitudes above this are NaN.
uint32_t infinity(Dtype dtype) { return minus_infinity(dtype) & (dtype == Dtype::f32 ? 0x7fffffffu : 0x7fffu); }

// Raw elements with -inf where the mask has no bit and in the padding up to whole groups.
template <typename Raw>
void copy_allowed(const Raw* x, int64_t n, const int32_t* words, Raw nothing, Raw* out) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    const int64_t width = std::min<int64_t>(32, n - begin);
    const uint32_t word = words == nullptr ? ~0u : static_cast<uint32_t>(words[begin / 32]);
    if (word == ~0u) {
      std::memcpy(out + begin, x + begin, width * sizeof(Raw));
    } else {
      for (int64_t i = 0; i < width; ++i) out[begin + i] = (word >> i) & 1u ? x[begin + i] : nothing;
    }
  }
  std::fill(out + n, out + ceil_div(n, kGroup) * kGroup, nothing);
}

template <typename Raw>
bool drop_nan(Raw* x, int64_t n, Raw infinite, Raw nothing) {
  constexpr Raw kMagnitude = static_cast<Raw>(~Raw{0}) >> 1;
  bool found = false;
  for (int64_t i = 0; i < n; ++i) {
    const bool nan = (x[i] & kMagnitude) > infinite;
    found |= nan;
    x[i] = nan ? nothing : x[i];
  }
  return found;
}

bool all_allowed(const int32_t* words, int64_t n) {
  if (words == nullptr) return true;
  int32_t all = -1;
  for (int64_t i = 0; i < n / 32; ++i) all &= words[i];
  return all == -1;
}

// The chunk in float64, for maxima that are infinite or so large that float32 products overflow.
void summarize_far(const void* x, Dtype dtype, int64_t n, ChunkSummary* summary) {
  summary->sum = 0.0;
  summary->weighted = 0.0;
  if (summary->max == kInf) {
    summary->shift = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < n; ++i) summary->sum += load_element(x, dtype, i) >= kLargest ? 1.0 : 0.0;
    return;
  }
  summary->shift = static_cast<double>(summary->max) * kLog2E;
  for (int64_t i = 0; i < n; ++i) {
    const double t = std::max(static_cast<double>(load_element(x, dtype, i)) * kLog2E - summary->shift, -1000.0);
    const double e = std::exp2(t);
    summary->sum += e;
    summary->weighted += e * t;
  }
}

}  // namespace

void stream_chunk(const void* row, Dtype dtype, int64_t cols, const int32_t* allowed, int64_t c, float* group_max,
                  ChunkSummary* summary) {
  const int64_t size = element_size(dtype);
  const int64_t begin = c * kChunk;
  const int64_t n = std::min(kChunk, cols - begin);
  const char* const source = static_cast<const char*>(row) + begin * size;
  const int32_t* const words = allowed == nullptr ? nullptr : allowed + begin / 32;
  const int64_t padded = ceil_div(n, kGroup) * kGroup;
  const Kernels& isa = kernels();
  const auto chunk = isa.chunk[static_cast<int>(dtype)];

  Scratch scratch;
  const auto fill_scratch = [&] {
    const uint32_t nothing = minus_infinity(dtype);
    if (size == 4) {
      copy_allowed(reinterpret_cast<const uint32_t*>(source), n, words, nothing, reinterpret_cast<uint32_t*>(&scratch));
    } else {
      copy_allowed(reinterpret_cast<const uint16_t*>(source), n, words, static_cast<uint16_t>(nothing),
                   reinterpret_cast<uint16_t*>(&scratch));
    }
  };

  const bool direct = n == padded && all_allowed(words, n);
  const void* data = source;
  if (!direct) {
    fill_scratch();
    data = &scratch;
  }
  const bool more = begin + 2 * kChunk <= cols;  // the next chunk is whole: prefetching it stays inside the row
  ChunkSums sums;
  chunk(data, padded / kGroup, more ? source + kChunk * size : data, group_max, &sums);

  summary->nan = false;
  if (std::isnan(sums.weighted) || std::isnan(sums.max)) {  // a NaN, an infinite maximum or nothing at all
    if (direct) fill_scratch();
    data = &scratch;
    if (size == 4) {
      summary->nan = drop_nan(reinterpret_cast<uint32_t*>(&scratch), n, infinity(dtype), minus_infinity(dtype));
    } else {
      summary->nan = drop_nan(reinterpret_cast<uint16_t*>(&scratch), n, static_cast<uint16_t>(infinity(dtype)),
                              static_cast<uint16_t>(minus_infinity(dtype)));
    }
    chunk(data, padded / kGroup, data, group_max, &sums);
  }
  summary->max = sums.max;
  if (sums.max == -kInf) {
    summary->shift = -std::numeric_limits<double>::infinity();
    summary->sum = 0.0;
    summary->weighted = 0.0;
  } else if (std::fabs(sums.max) > kFarthest) {
    summarize_far(data, dtype, n, summary);
  } else {
    summary->shift = sums.max * kLog2E;  // rounded to float32, as the kernel rounds it
    summary->sum = sums.sum;
    summary->weighted = sums.weighted;
  }
}

RowStats combine_chunks(const ChunkSummary* chunks, int64_t count) {
  RowStats stats{-kInf, 0.0f, -kInf, 0.0f, 0};
  double shift = -std::numeric_limits<double>::infinity();
  for (int64_t c = 0; c < count; ++c) {
    stats.max = std::max(stats.max, chunks[c].max);
    shift = std::max(shift, chunks[c].shift);
    if (chunks[c].nan) stats.flags |= kFlagNan;
  }
  if (stats.max == -kInf) {
    stats.flags |= kFlagEmpty;
    return stats;
  }
  double sum = 0.0;
  double weighted = 0.0;
  const bool infinite = stats.max == kInf;
  for (int64_t c = 0; c < count; ++c) {
    if (infinite) {
      if (chunks[c].max >= kLargest) sum += chunks[c].sum;
    } else if (chunks[c].sum > 0.0) {
      const double step = chunks[c].shift - shift;
      const double factor = std::exp2(step);
      sum += chunks[c].sum * factor;
      if (factor > 0.0) weighted += factor * (chunks[c].weighted + step * chunks[c].sum);
    }
  }
  if (infinite) {  // uniform over the +inf entries (and the largest finite value, which they count as)
    stats.logsumexp = kInf;
    stats.log_total = static_cast<float>(std::log(sum));
    stats.entropy = stats.log_total;
    return stats;
  }
  // x * kLog2E, not x * log2(e), is what the sums used: going back divides by the same constant.
  const double logsumexp = shift / kLog2E + std::log(sum);
  stats.logsumexp = static_cast<float>(logsumexp);
  stats.log_total = static_cast<float>(logsumexp - stats.max);
  // H = log Σ e^x − Σ p x = ln Σ 2^t − ln 2 · Σ p t
  stats.entropy = static_cast<float>(std::max(0.0, std::log(sum) - 0.69314718055994530942 * (weighted / sum)));
  return stats;
}

}  // namespace ensemble

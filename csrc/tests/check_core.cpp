// Checks the core without Python: every instruction set's loops against float64, then topk_stats end to end against a
// naive one. Built and run by csrc/tests/run.sh, also for aarch64 under an emulator and with AVX-512 emulated by SIMDe.
// Prints a digest of the bits per dtype: all fused instruction sets must print the same.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "../core/dispatch.h"
#include "../core/half.h"
#include "../core/topk_stats.h"

using namespace ensemble;

namespace {

int failures = 0;

void expect(bool holds, const char* isa, const char* what, double got, double want) {
  if (holds) return;
  std::printf("FAIL %s: %s: got %.9g, want %.9g\n", isa, what, got, want);
  ++failures;
}

std::vector<unsigned char> make_logits(Dtype dtype, int64_t n, unsigned seed) {
  // Bits, not library distributions, so that every platform tests the same numbers.
  std::mt19937 bits(seed);
  std::vector<unsigned char> raw(static_cast<size_t>(n * element_size(dtype)));
  for (int64_t i = 0; i < n; ++i) {
    float sum = -12.0f;
    for (int j = 0; j < 12; ++j) sum += static_cast<float>(bits() >> 24) / 128.0f;  // roughly normal around 0
    if (dtype == Dtype::f32) {
      std::memcpy(&raw[4 * i], &sum, 4);
    } else if (dtype == Dtype::bf16) {
      uint32_t word;
      std::memcpy(&word, &sum, 4);
      const uint16_t half = static_cast<uint16_t>(word >> 16);
      std::memcpy(&raw[2 * i], &half, 2);
    } else {
      const uint16_t half = static_cast<uint16_t>((bits() & 0x8000u) | (0x3000u + bits() % 0x1600u));  // 1/8 to 6
      std::memcpy(&raw[2 * i], &half, 2);
    }
  }
  return raw;
}

uint64_t digest(uint64_t hash, const void* data, size_t size) {
  for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
  return hash;
}

void check_loops(const Kernels& isa) {
  for (int type = 0; type < 3; ++type) {
    const Dtype dtype = static_cast<Dtype>(type);
    uint64_t hash = 14695981039346656037ull;
    for (int64_t groups : {1, 3, 64}) {
      const int64_t n = groups * kGroup;
      const auto raw = make_logits(dtype, n, 7 + static_cast<unsigned>(groups));
      std::vector<float> maxima(64);
      ChunkSums sums;
      isa.chunk[type](raw.data(), groups, raw.data(), maxima.data(), &sums);
      double top = -INFINITY, sum = 0.0, weighted = 0.0;
      for (int64_t i = 0; i < n; ++i) top = std::max<double>(top, load_element(raw.data(), dtype, i));
      const double shift = static_cast<float>(top) * kLog2E;
      for (int64_t g = 0; g < groups; ++g) {
        float group_top = -INFINITY;
        for (int64_t i = g * kGroup; i < (g + 1) * kGroup; ++i) {
          const double t = static_cast<double>(load_element(raw.data(), dtype, i)) * kLog2E - static_cast<float>(shift);
          group_top = std::max(group_top, load_element(raw.data(), dtype, i));
          sum += std::exp2(t);
          weighted += std::exp2(t) * t;
        }
        expect(maxima[static_cast<size_t>(g)] == group_top, isa.name, "group maximum", maxima[g], group_top);
      }
      expect(sums.max == top, isa.name, "maximum", sums.max, top);
      expect(std::fabs(sums.sum / sum - 1.0) < 1e-6, isa.name, "sum", sums.sum, sum);
      expect(std::fabs(sums.weighted / weighted - 1.0) < 2e-6, isa.name, "weighted sum", sums.weighted, weighted);
      hash = digest(hash, &sums, sizeof sums);
    }
    std::printf("digest %-7s dtype %d %016llx\n", isa.name, type, static_cast<unsigned long long>(hash));
  }

  // 16-bit maxima are compared as integers: signs, zeros and infinities at every place of a group.
  for (int type : {1, 2}) {
    const Dtype dtype = static_cast<Dtype>(type);
    const uint16_t minus_inf = type == 1 ? 0xfc00 : 0xff80;
    for (uint16_t rest : {minus_inf, uint16_t{0xc3a7}, uint16_t{0x8002}}) {
      for (uint16_t best : {uint16_t{0xc3a6}, uint16_t{0x8001}, uint16_t{0x8000}, uint16_t{0}, uint16_t{1}, uint16_t{0x43a6}}) {
        for (int64_t at = 0; at < kGroup; ++at) {
          std::vector<uint16_t> x(kGroup, rest);
          x[static_cast<size_t>(at)] = best;
          const float want = std::max(load_element(x.data(), dtype, at), load_element(x.data(), dtype, (at + 1) % kGroup));
          float maximum;
          ChunkSums sums;
          isa.chunk[type](x.data(), 1, x.data(), &maximum, &sums);
          expect(maximum == want && sums.max == want, isa.name, "16-bit maximum", maximum, want);
        }
      }
    }
  }

  // NaN and infinities must reach the caller.
  for (float odd : {NAN, INFINITY}) {
    std::vector<float> x(256, 1.0f), maxima(2);
    x[200] = odd;
    ChunkSums sums;
    isa.chunk[0](x.data(), 2, x.data(), maxima.data(), &sums);
    expect(std::isnan(sums.weighted), isa.name, "a NaN or an infinite maximum shows", sums.weighted, NAN);
    expect(maxima[0] == 1.0f, isa.name, "the other group's maximum", maxima[0], 1.0);
  }
  for (int type : {1, 2}) {
    const uint16_t infinite = type == 1 ? 0x7c00 : 0x7f80;
    for (int bits : {int{infinite}, infinite + 1, infinite + 0x8001, 0x7fff, 0xffff}) {
      std::vector<uint16_t> x(256, 0x3c00);
      x[200] = static_cast<uint16_t>(bits);
      std::vector<float> maxima(2);
      ChunkSums sums;
      isa.chunk[type](x.data(), 2, x.data(), maxima.data(), &sums);
      expect(std::isnan(sums.weighted), isa.name, "a 16-bit NaN or infinite maximum shows", sums.weighted, NAN);
      expect(maxima[0] == load_element(x.data(), static_cast<Dtype>(type), 0), isa.name, "the other 16-bit maximum", maxima[0], 1.0);
    }
  }

  std::vector<float> x(4096), y;
  for (size_t i = 0; i < x.size(); ++i) x[i] = -104.0f + 190.0f * static_cast<float>(i) / 4096.0f;
  y = x;
  isa.exp(y.data(), 4096);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    expect(std::fabs(y[i] - want) <= 1.3e-7 * want + 1.5e-45, isa.name, "exp", y[i], want);
  }
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::ldexp(1.0f + static_cast<float>(i) / 4096.0f, static_cast<int>(i % 250) - 125);
  y = x;
  isa.log(y.data(), 4096);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::log(static_cast<double>(x[i]));
    expect(std::fabs(y[i] - want) <= 1.3e-7 * std::fabs(want) + 1e-9, isa.name, "log", y[i], want);
  }
}

void check_topk_stats() {
  const int64_t rows = 3, cols = 20001, k = 10;
  for (int type = 0; type < 3; ++type) {
    const Dtype dtype = static_cast<Dtype>(type);
    const auto raw = make_logits(dtype, rows * cols, 99);
    std::vector<float> values(rows * k), logsumexp(rows), entropy(rows);
    std::vector<int32_t> ids(rows * k), flags(rows);
    for (int threads : {1, 3}) {
      topk_stats({{raw.data(), dtype, rows, cols, cols}, {}, k, values.data(), ids.data(), logsumexp.data(),
                  entropy.data(), flags.data()},
                 threads);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<float> row(cols);
        for (int64_t i = 0; i < cols; ++i) row[i] = load_element(raw.data(), dtype, r * cols + i);
        std::vector<int32_t> order(cols);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
        double sum = 0.0, weighted = 0.0;
        for (float v : row) sum += std::exp(static_cast<double>(v) - row[order[0]]);
        for (float v : row) weighted += std::exp(static_cast<double>(v) - row[order[0]]) / sum * v;
        const double lse = row[order[0]] + std::log(sum);
        expect(std::fabs(logsumexp[r] - lse) < 1e-5, kernels().name, "logsumexp", logsumexp[r], lse);
        expect(std::fabs(entropy[r] - (lse - weighted)) < 1e-5, kernels().name, "entropy", entropy[r], lse - weighted);
        for (int64_t j = 0; j < k; ++j) expect(ids[r * k + j] == order[j], kernels().name, "id", ids[r * k + j], order[j]);
      }
    }
  }
}

}  // namespace

int main() {
  check_loops(kKernelsPlain);
#if defined(ENSEMBLE_ISA_X86)
  if (set_isa("avx2")) check_loops(kKernelsAvx2);
#if defined(ENSEMBLE_EMULATE_AVX512)
  check_loops(kKernelsAvx512);
#else
  if (set_isa("avx512")) check_loops(kKernelsAvx512);
#endif
#endif
#if defined(ENSEMBLE_ISA_NEON)
  check_loops(kKernelsNeon);
#endif
  for (const std::string& name : available_isas()) {
    set_isa(name);
    check_topk_stats();
    std::printf("topk_stats on %s checked\n", name.c_str());
  }
  std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

#include "linear.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.h"
#include "pool.h"
#include "types.h"

namespace ensemble {
namespace {

constexpr int64_t kDepth = 1024;   // inputs of a converted block: a tile of x and of weights fit the first-level cache
constexpr int64_t kBlock = 24576;  // elements of a converted block: 96 KiB of float32, well inside a second-level cache
constexpr int64_t kRows = 64;      // rows per pass over a converted block
constexpr int64_t kLanes = 8;      // blocks are padded with zeros to whole vectors
constexpr int64_t kWidest = 96;    // outputs of a block at most

struct Workspace {
  alignas(64) float weights[kBlock + kWidest * kLanes];
  alignas(64) float tail[kRows * kLanes];
  alignas(64) float sums[kWidest * kRows];
};

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bfloat16(uint16_t raw) {
  const uint32_t bits = static_cast<uint32_t>(raw) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

bool linear_available() { return kernels().products != nullptr; }

void linear(const LinearInput& in, uint16_t* out, int threads) {
  const Kernels& isa = kernels();
  const int64_t depth = std::min(ceil_div(in.inputs, kLanes) * kLanes, kDepth);
  const int64_t width = std::clamp<int64_t>(kBlock / depth / kTileOutputs * kTileOutputs, kTileOutputs, kWidest);
  const int64_t blocks = ceil_div(in.outputs, width);
  // Runs of blocks, so that what a thread fetches ahead is its own next block.
  const int64_t grain = std::clamp<int64_t>(blocks / (4 * threads), 1, 16);
  parallel_for(threads, blocks, grain, [&](int64_t block) {
    static thread_local const std::unique_ptr<Workspace> space(new Workspace);
    const int64_t first = block * width;
    const int64_t n = std::min(width, in.outputs - first);
    // One block of rows at a time keeps the sums small; the weights are converted again for each, which costs 1/64.
    for (int64_t row = 0; row < in.rows; row += kRows) {
      const int64_t m = std::min(kRows, in.rows - row);
      for (int64_t begin = 0; begin < in.inputs; begin += kDepth) {
        const int64_t k = std::min(kDepth, in.inputs - begin);
        const int64_t padded = ceil_div(k, kLanes) * kLanes;
        const bool last = begin + kDepth >= in.inputs && row + kRows >= in.rows && first + 2 * width <= in.outputs;
        isa.widen(in.weight + first * in.inputs + begin, in.inputs, n, k, space->weights, padded);
        const Products job{in.x + row * in.inputs + begin,
                           in.inputs,
                           m,
                           space->weights,
                           padded,
                           n,
                           k,
                           space->sums,
                           kRows,
                           begin != 0,
                           // the next block's weights, fetched while this one's products leave the memory idle
                           last ? in.weight + (first + width) * in.inputs : nullptr,
                           width * in.inputs * 2};
        isa.products(job);
      }
      for (int64_t r = 0; r < m; ++r) {
        uint16_t* const to = out + (row + r) * in.outputs + first;
        for (int64_t o = 0; o < n; ++o) {
          const float sum = space->sums[o * kRows + r];
          to[o] = to_bfloat16(in.bias == nullptr ? sum : sum + from_bfloat16(in.bias[first + o]));
        }
      }
    }
  });
}

}  // namespace ensemble

#include "linear.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "dispatch.h"
#include "half.h"
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
  alignas(64) float sums[kWidest * kRows];
};

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void store(float sum, float* to) { *to = sum; }
void store(float sum, uint16_t* to) { *to = to_bfloat16(sum); }

// A block of weights as the products read them: in place where it can be.
struct Block {
  const float* weights;
  int64_t stride;
};

Block prepare(const Kernels&, const float* from, int64_t from_stride, int64_t rows, int64_t count, float* to) {
  if (count % kLanes == 0) return {from, from_stride};
  const int64_t stride = ceil_div(count, kLanes) * kLanes;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(to + r * stride, from + r * from_stride, static_cast<size_t>(count) * sizeof(float));
    std::fill(to + r * stride + count, to + (r + 1) * stride, 0.0f);
  }
  return {to, stride};
}

Block prepare(const Kernels& isa, const uint16_t* from, int64_t from_stride, int64_t rows, int64_t count, float* to) {
  const int64_t stride = ceil_div(count, kLanes) * kLanes;
  isa.widen(from, from_stride, rows, count, to, stride);
  return {to, stride};
}

template <typename Raw>
void run(const LinearInput& in, Raw* out, int threads) {
  const Kernels& isa = kernels();
  const Raw* const weight = static_cast<const Raw*>(in.weight);
  const Raw* const bias = static_cast<const Raw*>(in.bias);
  const int64_t depth = std::min(ceil_div(in.inputs, kLanes) * kLanes, kDepth);
  const int64_t width = std::clamp<int64_t>(kBlock / depth / kTileOutputs * kTileOutputs, kTileOutputs, kWidest);
  const int64_t blocks = ceil_div(in.outputs, width);
  // Runs of blocks, so that what a thread fetches ahead is its own next block.
  const int64_t grain = std::clamp<int64_t>(blocks / (4 * threads), 1, 16);
  parallel_for(threads, blocks, grain, [&](int64_t block) {
    static thread_local const std::unique_ptr<Workspace> space(new Workspace);
    const int64_t first = block * width;
    const int64_t n = std::min(width, in.outputs - first);
    // A few rows at a time keep the sums small; weights are widened again for each, which costs 1/64.
    for (int64_t row = 0; row < in.rows; row += kRows) {
      const int64_t m = std::min(kRows, in.rows - row);
      for (int64_t begin = 0; begin < in.inputs; begin += kDepth) {
        const int64_t k = std::min(kDepth, in.inputs - begin);
        const bool last = begin + kDepth >= in.inputs && row + kRows >= in.rows && first + 2 * width <= in.outputs;
        const Block ready = prepare(isa, weight + first * in.inputs + begin, in.inputs, n, k, space->weights);
        const Products job{in.x + row * in.inputs + begin,
                           in.inputs,
                           m,
                           ready.weights,
                           ready.stride,
                           n,
                           k,
                           space->sums,
                           kRows,
                           begin != 0,
                           // the next block's weights, fetched while this one's products leave the memory idle
                           last ? weight + (first + width) * in.inputs : nullptr,
                           width * in.inputs * static_cast<int64_t>(sizeof(Raw))};
        isa.products(job);
      }
      for (int64_t r = 0; r < m; ++r) {
        Raw* const to = out + (row + r) * in.outputs + first;
        for (int64_t o = 0; o < n; ++o) {
          const float sum = space->sums[o * kRows + r];
          store(bias == nullptr ? sum : sum + load_element(bias, in.dtype, first + o), to + o);
        }
      }
    }
  });
}

}  // namespace

bool linear_available() { return kernels().products != nullptr; }

void linear(const LinearInput& in, void* out, int threads) {
  if (in.dtype == Dtype::f32) {
    run(in, static_cast<float*>(out), threads);
  } else {
    run(in, static_cast<uint16_t*>(out), threads);
  }
}

}  // namespace ensemble

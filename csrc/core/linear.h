// A linear layer whose weights are bfloat16 and whose sums are float32, for processors without bfloat16 products.
#pragma once

#include <cstdint>

namespace ensemble {

struct LinearInput {
  const float* x;           // [rows, inputs]
  const uint16_t* weight;   // [outputs, inputs], bfloat16
  const uint16_t* bias;     // [outputs] bfloat16, or null
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
};

// Whether the instruction set in use has the inner loop.
bool linear_available();

// out[r, o] = bfloat16(sum over i of x[r, i] * weight[o, i] + bias[o]), [rows, outputs]. Every sum runs in one order,
// whatever the number of rows and threads, so a row's bits do not depend on the rows beside it.
void linear(const LinearInput& in, uint16_t* out, int threads);

}  // namespace ensemble

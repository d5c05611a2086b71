// A linear layer for a few rows: the weights are read once, sums are float32. torch's own products are far from the limits of
// x86 processors without AVX-512 there, and emulated altogether for bfloat16.
#pragma once

#include <cstdint>

#include "types.h"

namespace ensemble {

struct LinearInput {
  const float* x;      // [rows, inputs]
  const void* weight;  // [outputs, inputs], bf16 or f32
  const void* bias;    // [outputs] of the same type, or null
  Dtype dtype;
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
};

// Whether the instruction set in use has the inner loop.
bool linear_available();

// out[r, o] = sum over i of x[r, i] * weight[o, i] + bias[o], [rows, outputs] of the weights' type. Every sum runs in one
// order, whatever the number of rows and threads, so a row's bits do not depend on the rows beside it.
void linear(const LinearInput& in, void* out, int threads);

}  // namespace ensemble

// Stage 1 of topk_stats on a GPU behind a C interface: raw pointers and a stream, nothing of torch.
#pragma once

#include <cstdint>

extern "C" {

// Reads logits [rows, cols] (dtype 0: float32, 1: float16, 2: bfloat16; row_stride in elements) once. `allowed`: bitmask
// rows of ceil(cols / 32) words, allowed_stride words apart (0: one row for all), or nullptr. Writes, per row and chunk of
// 8192 elements, partials[row][chunk] = {max, Σe, Σe·z, NaN seen} with z = (x − max)·log2 e and e = 2^z, and the maximum
// of every 128 elements to maxima[row][chunk * 64 ...]. Launches on `stream` and returns cudaGetLastError().
int ensemble_cuda_topk_stream(const void* logits, int dtype, int64_t rows, int64_t cols, int64_t row_stride,
                              const int32_t* allowed, int64_t allowed_stride, float* partials, float* maxima,
                              void* stream);

// The text of an error code.
const char* ensemble_cuda_error(int code);
}

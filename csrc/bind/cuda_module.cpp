// The Python module of the CUDA stage: DLPack tensors on one device in, a launch on the caller's stream out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "../cuda/topk_stream.h"

namespace nb = nanobind;
using namespace nb::literals;

using Logits = nb::ndarray<nb::ro, nb::device::cuda, nb::ndim<2>>;
using Mask = nb::ndarray<const int32_t, nb::c_contig, nb::device::cuda, nb::ndim<2>>;
using Out = nb::ndarray<float, nb::c_contig, nb::device::cuda>;

namespace {

int dtype_code(const Logits& logits) {
  const nb::dlpack::dtype type = logits.dtype();
  if (type == nb::dtype<float>()) return 0;
  if (type == nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}) return 1;
  if (type == nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1}) return 2;
  throw std::invalid_argument("logits must be float32, float16 or bfloat16");
}

void topk_stream(const Logits& logits, const std::optional<Mask>& allowed, const Out& partials, const Out& maxima,
                 uintptr_t stream) {
  const int64_t rows = static_cast<int64_t>(logits.shape(0));
  const int64_t cols = static_cast<int64_t>(logits.shape(1));
  const int64_t chunks = (cols + 8191) / 8192;
  const int64_t words = (cols + 31) / 32;
  if (cols > 1 && logits.stride(1) != 1) throw std::invalid_argument("logits must have stride 1 in the last dimension");
  if (static_cast<int64_t>(partials.size()) != rows * chunks * 4 || static_cast<int64_t>(maxima.size()) != rows * chunks * 64) {
    throw std::invalid_argument("partials must hold rows x chunks x 4 and maxima rows x chunks x 64 elements");
  }
  const int32_t* mask = nullptr;
  int64_t mask_stride = 0;
  if (allowed) {
    const int64_t mask_rows = static_cast<int64_t>(allowed->shape(0));
    if (static_cast<int64_t>(allowed->shape(1)) != words || (mask_rows != 1 && mask_rows != rows)) {
      throw std::invalid_argument("allowed must be [1 or " + std::to_string(rows) + ", " + std::to_string(words) + "]");
    }
    mask = allowed->data();
    mask_stride = mask_rows == 1 ? 0 : words;
  }
  const int code = ensemble_cuda_topk_stream(logits.data(), dtype_code(logits), rows, cols, logits.stride(0), mask,
                                             mask_stride, partials.data(), maxima.data(),
                                             reinterpret_cast<void*>(stream));
  if (code != 0) throw std::runtime_error(std::string("the CUDA launch failed: ") + ensemble_cuda_error(code));
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.def("topk_stream", &topk_stream, "logits"_a.noconvert(), "allowed"_a.noconvert().none(), "partials"_a.noconvert(),
        "maxima"_a.noconvert(), "stream"_a);
}

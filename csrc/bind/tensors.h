// From DLPack tensors to the core's plain views, with every assumption of the core checked here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "../core/types.h"

namespace ensemble {

namespace nb = nanobind;

using AnyTensor = nb::ndarray<nb::ro, nb::device::cpu>;
using AnyOut = nb::ndarray<nb::c_contig, nb::device::cpu>;  // of a type that C++ has no name for
template <typename T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

template <typename Tensor>
std::string shape_text(const Tensor& t) {
  std::string text = "[";
  for (size_t i = 0; i < t.ndim(); ++i) text += (i ? ", " : "") + std::to_string(t.shape(i));
  return text + "]";
}

template <typename Tensor>
void require_size(const Tensor& t, int64_t count, const char* name) {
  require(static_cast<int64_t>(t.size()) == count,
          std::string(name) + " needs " + std::to_string(count) + " elements, got " + shape_text(t));
}

inline Logits logits_view(const AnyTensor& t) {
  require(t.ndim() == 2, "logits must have two dimensions, got " + shape_text(t));
  const nb::dlpack::dtype type = t.dtype();
  Logits view{t.data(), Dtype::f32, static_cast<int64_t>(t.shape(0)), static_cast<int64_t>(t.shape(1)), t.stride(0)};
  if (type == nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1}) {
    view.dtype = Dtype::bf16;
  } else if (type == nb::dlpack::dtype{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1}) {
    view.dtype = Dtype::f16;
  } else {
    require(type == nb::dtype<float>(), "logits must be float32, float16 or bfloat16");
  }
  require(view.cols <= 1 || t.stride(1) == 1, "logits must have stride 1 in the last dimension");
  require(view.cols < (int64_t{1} << 31), "logits must have fewer than 2^31 columns");
  return view;
}

inline Allowed allowed_view(const In<int32_t>& mask, const Logits& logits) {
  const int64_t words = ceil_div(logits.cols, 32);
  require(mask.ndim() == 2 && static_cast<int64_t>(mask.shape(1)) == words &&
              (mask.shape(0) == 1 || static_cast<int64_t>(mask.shape(0)) == logits.rows),
          "allowed must be [1 or " + std::to_string(logits.rows) + ", " + std::to_string(words) + "], got " +
              shape_text(mask));
  return {mask.data(), mask.shape(0) == 1 ? 0 : words};
}

template <typename T>
T* column(const Out<T>& t, int64_t count, const char* name) {
  require_size(t, count, name);
  return t.data();
}

template <typename T>
const T* column(const In<T>& t, int64_t count, const char* name) {
  require_size(t, count, name);
  return t.data();
}

inline Table table(const In<int32_t>& t) { return {t.data(), static_cast<int64_t>(t.size())}; }

}  // namespace ensemble

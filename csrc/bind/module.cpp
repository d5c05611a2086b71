// The Python module: checks arguments, releases the interpreter lock, calls the core. Outputs are made by the caller.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "../core/dispatch.h"
#include "../core/topk_stats.h"
#include "tensors.h"

namespace ensemble {
namespace {

using namespace nb::literals;

void bind_topk_stats(nb::module_& m) {
  m.def(
      "topk_stats",
      [](const AnyTensor& logits, int64_t k, const std::optional<In<int32_t>>& allowed, const Out<float>& values,
         const Out<int32_t>& ids, const Out<float>& logsumexp, const Out<float>& entropy, const Out<int32_t>& flags,
         int threads) {
        TopkRequest request{logits_view(logits), {}, k, values.data(), ids.data(), logsumexp.data(), entropy.data(),
                            flags.data()};
        const int64_t rows = request.logits.rows;
        if (allowed) request.allowed = allowed_view(*allowed, request.logits);
        require(k >= 0, "k must not be negative, got " + std::to_string(k));
        require_size(values, rows * k, "values");
        require_size(ids, rows * k, "ids");
        require_size(logsumexp, rows, "logsumexp");
        require_size(entropy, rows, "entropy");
        require_size(flags, rows, "flags");
        const nb::gil_scoped_release release;
        topk_stats(request, threads);
      },
      "logits"_a.noconvert(), "k"_a, "allowed"_a.noconvert().none(), "values"_a.noconvert(), "ids"_a.noconvert(),
      "logsumexp"_a.noconvert(), "entropy"_a.noconvert(), "flags"_a.noconvert(), "threads"_a);
}

}  // namespace

NB_MODULE(_core, m) {
  m.def("available_isas", &available_isas, "Instruction sets that this build has and this processor runs, best first.");
  m.def("isa", [] { return std::string(kernels().name); }, "The instruction set in use.");
  m.def(
      "set_isa",
      [](const std::string& name) {
        if (set_isa(name)) return;
        std::string known;
        for (const std::string& isa : available_isas()) known += ", " + isa;
        throw std::invalid_argument("instruction set '" + name + "' does not run here; right would be auto" + known);
      },
      "name"_a, "Uses the named instruction set from now on; 'auto' is the best one.");
  bind_topk_stats(m);
}

}  // namespace ensemble

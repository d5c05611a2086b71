// The Python module: checks arguments, releases the interpreter lock, calls the core. Outputs are made by the caller.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "../core/dispatch.h"
#include "../core/fuse.h"
#include "../core/linear.h"
#include "../core/pool.h"
#include "../core/sample_tokens.h"
#include "../core/topk_stats.h"
#include "../core/verify_draft.h"
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
        const Logits view = logits_view(logits);
        const int64_t rows = view.rows;
        require(k >= 0, "k must not be negative, got " + std::to_string(k));
        const TopkRequest request{view,
                                  allowed ? allowed_view(*allowed, view) : Allowed{},
                                  k,
                                  column(values, rows * k, "values"),
                                  column(ids, rows * k, "ids"),
                                  column(logsumexp, rows, "logsumexp"),
                                  column(entropy, rows, "entropy"),
                                  column(flags, rows, "flags")};
        const nb::gil_scoped_release release;
        topk_stats(request, threads);
      },
      "logits"_a.noconvert(), "k"_a, "allowed"_a.noconvert().none(), "values"_a.noconvert(), "ids"_a.noconvert(),
      "logsumexp"_a.noconvert(), "entropy"_a.noconvert(), "flags"_a.noconvert(), "threads"_a);
}

void bind_candidates(nb::module_& m) {
  m.def(
      "union_topk",
      [](const std::vector<In<int32_t>>& ids, const std::vector<In<int32_t>>& to_cid, const Out<int32_t>& cids,
         const Out<int32_t>& count, int threads) {
        const int64_t rows = static_cast<int64_t>(count.size());
        require(ids.size() == to_cid.size(), "ids and to_cid need one tensor per model");
        int64_t width = 0;
        for (const auto& t : ids) {
          require(t.ndim() == 2 && static_cast<int64_t>(t.shape(0)) == rows, "ids must be [rows, k], got " + shape_text(t));
          width += static_cast<int64_t>(t.shape(1));
        }
        int32_t* const out = column(cids, rows * width, "cids");
        const nb::gil_scoped_release release;
        parallel_for(threads, rows, 64, [&](int64_t row) {
          int32_t* at = out + row * width;
          for (size_t i = 0; i < ids.size(); ++i) {
            const int64_t k = static_cast<int64_t>(ids[i].shape(1));
            const Table candidates = table(to_cid[i]);
            for (int64_t j = 0; j < k; ++j) *at++ = candidates.at(ids[i].data()[row * k + j]);
          }
          count.data()[row] = make_union(out + row * width, width);
        });
      },
      "ids"_a.noconvert(), "to_cid"_a.noconvert(), "cids"_a.noconvert(), "count"_a.noconvert(), "threads"_a);

  m.def(
      "gather_candidates",
      [](const AnyTensor& logits, const In<int32_t>& cids, const In<int32_t>& ids_of, const In<int32_t>& eos_ids,
         const std::optional<In<int32_t>>& allowed, const Out<float>& scores, int threads) {
        const Logits view = logits_view(logits);
        require(cids.ndim() == 2 && static_cast<int64_t>(cids.shape(0)) == view.rows,
                "cids must be [rows, width], got " + shape_text(cids));
        const int64_t width = static_cast<int64_t>(cids.shape(1));
        const Allowed mask = allowed ? allowed_view(*allowed, view) : Allowed{};
        float* const out = column(scores, view.rows * width, "scores");
        const nb::gil_scoped_release release;
        parallel_for(threads, view.rows, 16, [&](int64_t row) {
          gather(RowReader(view, mask, row), cids.data() + row * width, width, table(ids_of), table(eos_ids),
                 out + row * width);
        });
      },
      "logits"_a.noconvert(), "cids"_a.noconvert(), "ids_of"_a.noconvert(), "eos_ids"_a.noconvert(),
      "allowed"_a.noconvert().none(), "scores"_a.noconvert(), "threads"_a);
}

// Fields in the order of the FuseSettings tuple.
struct SettingsArgument {
  std::vector<AnyTensor> fields;

  template <typename T>
  const T* field(size_t i, int64_t count, const char* name) const {
    const AnyTensor& t = fields[i];
    require(t.dtype() == nb::dtype<T>(), std::string("settings.") + name + " has the wrong type");
    require(static_cast<int64_t>(t.size()) == count, std::string("settings.") + name + " has shape " + shape_text(t));
    return static_cast<const T*>(t.data());
  }

  FuseSettings view(int64_t rows, int64_t models) const {
    require(fields.size() == 18, "settings must have 18 fields, got " + std::to_string(fields.size()));
    FuseSettings s;
    s.weights = field<float>(0, rows * models, "weights");
    s.top_k = field<int32_t>(1, rows, "top_k");
    s.aggregate = field<int32_t>(2, rows, "aggregate");
    s.oov = field<int32_t>(3, rows, "oov");
    s.sharpen = field<int32_t>(4, rows, "sharpen");
    s.trigger = field<int32_t>(5, rows, "trigger");
    s.threshold = field<float>(6, rows, "threshold");
    s.min_prob = field<float>(7, rows, "min_prob");
    s.tau = field<float>(8, rows, "tau");
    s.gate = field<int32_t>(9, rows, "gate");
    s.gate_threshold = field<float>(10, rows, "gate_threshold");
    s.temperature = field<float>(11, rows, "temperature");
    s.sample_top_k = field<int32_t>(12, rows, "sample_top_k");
    s.top_p = field<float>(13, rows, "top_p");
    s.min_p = field<float>(14, rows, "min_p");
    s.seed = field<int64_t>(15, rows, "seed");
    s.row = field<int64_t>(16, rows, "row");
    s.step = field<int64_t>(17, rows, "step");
    return s;
  }
};

void bind_fuse_candidates(nb::module_& m) {
  m.def(
      "fuse_candidates",
      [](const In<float>& scores, const In<int32_t>& cids, const In<float>& logsumexp, const In<int32_t>& tops,
         const In<float>& primary_max, const In<int32_t>& primary_cid, const In<int32_t>& prefix_end, int64_t space_cid,
         const std::vector<AnyTensor>& settings, const Out<float>& probs, const Out<int32_t>& choice,
         const Out<float>& max_prob, const Out<float>& entropy, const Out<float>& kl, const Out<float>& js,
         const Out<uint8_t>& ensembled, const Out<uint8_t>& sharpened, const Out<int32_t>& flags, int threads) {
        require(scores.ndim() == 3, "scores must be [models, rows, width], got " + shape_text(scores));
        require(tops.ndim() == 2, "primary_topk_cids must be [rows, k], got " + shape_text(tops));
        const int64_t models = static_cast<int64_t>(scores.shape(0));
        const int64_t rows = static_cast<int64_t>(scores.shape(1));
        const int64_t width = static_cast<int64_t>(scores.shape(2));
        const int64_t tops_width = static_cast<int64_t>(tops.shape(1));
        const CandidateScores input{scores.data(),
                                    column(cids, rows * width, "cids"),
                                    column(logsumexp, models * rows, "logsumexp"),
                                    column(tops, rows * tops_width, "primary_topk_cids"),
                                    column(primary_max, rows, "primary_max"),
                                    column(primary_cid, rows, "primary_cid"),
                                    models,
                                    rows,
                                    width,
                                    tops_width};
        const FusedOutput output{column(probs, rows * width, "probs"), column(choice, rows, "choice"),
                                 column(max_prob, rows, "max_prob"),   column(entropy, rows, "entropy"),
                                 column(kl, models * rows, "kl"),      column(js, rows, "js"),
                                 column(ensembled, rows, "ensembled"), column(sharpened, rows, "sharpened"),
                                 column(flags, rows, "flags")};
        const PrefixRanges prefixes{prefix_end.data(), static_cast<int64_t>(prefix_end.size()), space_cid};
        const FuseSettings fields = SettingsArgument{settings}.view(rows, models);
        const nb::gil_scoped_release release;
        fuse_candidates(input, prefixes, fields, output, threads);
      },
      "scores"_a.noconvert(), "cids"_a.noconvert(), "logsumexp"_a.noconvert(), "primary_topk_cids"_a.noconvert(),
      "primary_max"_a.noconvert(), "primary_cid"_a.noconvert(), "prefix_end"_a.noconvert(), "space_cid"_a,
      "settings"_a.noconvert(), "probs"_a.noconvert(), "choice"_a.noconvert(), "max_prob"_a.noconvert(),
      "entropy"_a.noconvert(), "kl"_a.noconvert(), "js"_a.noconvert(), "ensembled"_a.noconvert(),
      "sharpened"_a.noconvert(), "flags"_a.noconvert(), "threads"_a);
}

// fuse_step and fuse_full differ only in the width of the candidate lists.
template <typename Run>
void bind_step(nb::module_& m, const char* name, bool union_wide, Run run) {
  m.def(
      name,
      [union_wide, run](const std::vector<AnyTensor>& logits, const std::vector<In<int32_t>>& to_cid,
                        const std::vector<In<int32_t>>& exact_id, const std::vector<In<int32_t>>& piece_id,
                        const std::vector<In<int32_t>>& allowed, const std::vector<In<int32_t>>& eos_ids,
                        const In<int32_t>& prefix_end, int64_t space_cid, const std::vector<AnyTensor>& settings,
                        int64_t k, const Out<int32_t>& cid, const Out<int32_t>& primary_id, const Out<int32_t>& cids,
                        const Out<float>& probs, const Out<int32_t>& count, const Out<float>& max_prob,
                        const Out<float>& entropy, const Out<float>& kl, const Out<float>& js,
                        const Out<uint8_t>& ensembled, const Out<uint8_t>& sharpened, const Out<int32_t>& top_cid,
                        const Out<float>& top_prob, const Out<float>& logsumexp, const Out<float>& model_entropy,
                        const Out<int32_t>& flags, int threads) {
        const size_t models = logits.size();
        require(models >= 1 && to_cid.size() == models && exact_id.size() == models && piece_id.size() == models &&
                    allowed.size() == models && eos_ids.size() == models,
                "logits and the vocabulary's lists need one tensor per model");
        require(k >= 1, "k must be at least 1, got " + std::to_string(k));
        FuseInput in;
        in.k = k;
        in.prefixes = {prefix_end.data(), static_cast<int64_t>(prefix_end.size()), space_cid};
        require(in.prefixes.size >= 1, "prefix_end must not be empty");
        for (size_t i = 0; i < models; ++i) {
          const Logits view = logits_view(logits[i]);
          in.models.push_back({view, allowed_view(allowed[i], view), table(to_cid[i]), table(exact_id[i]),
                               table(piece_id[i]), table(eos_ids[i])});
          require(view.rows == in.models[0].logits.rows, "every model's logits need the same number of rows");
          require_size(to_cid[i], view.cols, "to_cid");
          require_size(exact_id[i], in.prefixes.size, "exact_id");
          require_size(piece_id[i], in.prefixes.size, "piece_id");
        }
        const int64_t rows = in.rows = in.models[0].logits.rows;
        const int64_t per_model = static_cast<int64_t>(models) * rows;
        in.settings = SettingsArgument{settings}.view(rows, static_cast<int64_t>(models));
        const int64_t width = union_wide ? static_cast<int64_t>(models) * k : k;
        const FuseOutput out{column(cid, rows, "cid"),
                             column(primary_id, rows, "primary_id"),
                             column(cids, rows * width, "cids"),
                             column(probs, rows * width, "probs"),
                             column(count, rows, "count"),
                             column(max_prob, rows, "max_prob"),
                             column(entropy, rows, "entropy"),
                             column(kl, per_model, "kl"),
                             column(js, rows, "js"),
                             column(ensembled, rows, "ensembled"),
                             column(sharpened, rows, "sharpened"),
                             column(top_cid, per_model, "top_cid"),
                             column(top_prob, per_model, "top_prob"),
                             column(logsumexp, per_model, "logsumexp"),
                             column(model_entropy, per_model, "model_entropy"),
                             column(flags, rows, "flags")};
        const nb::gil_scoped_release release;
        run(in, out, threads);
      },
      "logits"_a.noconvert(), "to_cid"_a.noconvert(), "exact_id"_a.noconvert(), "piece_id"_a.noconvert(),
      "allowed"_a.noconvert(), "eos_ids"_a.noconvert(), "prefix_end"_a.noconvert(), "space_cid"_a,
      "settings"_a.noconvert(), "k"_a, "cid"_a.noconvert(), "primary_id"_a.noconvert(), "cids"_a.noconvert(),
      "probs"_a.noconvert(), "count"_a.noconvert(), "max_prob"_a.noconvert(), "entropy"_a.noconvert(),
      "kl"_a.noconvert(), "js"_a.noconvert(), "ensembled"_a.noconvert(), "sharpened"_a.noconvert(),
      "top_cid"_a.noconvert(), "top_prob"_a.noconvert(), "logsumexp"_a.noconvert(), "model_entropy"_a.noconvert(),
      "flags"_a.noconvert(), "threads"_a);
}

void bind_verify_draft(nb::module_& m) {
  m.def(
      "verify_draft",
      [](const AnyTensor& logits, const In<int32_t>& targets, const std::optional<In<int32_t>>& allowed,
         const In<int32_t>& eos_ids, const Out<float>& target_prob, const Out<uint8_t>& is_argmax,
         const Out<int32_t>& argmax, const Out<float>& logsumexp, const Out<int32_t>& flags, int threads) {
        const Logits view = logits_view(logits);
        const VerifyInput input{view, allowed ? allowed_view(*allowed, view) : Allowed{},
                                column(targets, view.rows, "targets"), table(eos_ids)};
        const VerifyOutput output{column(target_prob, view.rows, "target_prob"),
                                  column(is_argmax, view.rows, "is_argmax"), column(argmax, view.rows, "argmax"),
                                  column(logsumexp, view.rows, "logsumexp"), column(flags, view.rows, "flags")};
        const nb::gil_scoped_release release;
        verify_draft(input, output, threads);
      },
      "logits"_a.noconvert(), "targets"_a.noconvert(), "allowed"_a.noconvert().none(), "eos_ids"_a.noconvert(),
      "target_prob"_a.noconvert(), "is_argmax"_a.noconvert(), "argmax"_a.noconvert(), "logsumexp"_a.noconvert(),
      "flags"_a.noconvert(), "threads"_a);
}

// sample_tokens and token_probs differ only in what they write. Settings: the fields of the SampleSettings tuple.
template <typename T, typename Run>
void bind_sampling(nb::module_& m, const char* name, Run run) {
  m.def(
      name,
      [run](const AnyTensor& logits, const std::optional<In<int32_t>>& allowed, const std::vector<AnyTensor>& settings,
            const std::optional<In<int32_t>>& numbers, const Out<T>& out, int threads) {
        const Logits view = logits_view(logits);
        require(settings.size() == 7, "settings must have 7 fields, got " + std::to_string(settings.size()));
        const SettingsArgument s{settings};
        if (numbers) require_size(*numbers, view.rows * view.cols, "numbers");
        const SampleInput input{
            view,
            allowed ? allowed_view(*allowed, view) : Allowed{},
            numbers ? numbers->data() : nullptr,
            {s.field<float>(0, view.rows, "temperature"), s.field<int32_t>(1, view.rows, "sample_top_k"),
             s.field<float>(2, view.rows, "top_p"), s.field<float>(3, view.rows, "min_p"),
             s.field<int64_t>(4, view.rows, "seed"), s.field<int64_t>(5, view.rows, "row"),
             s.field<int64_t>(6, view.rows, "step")}};
        T* const to = out.data();
        const nb::gil_scoped_release release;
        run(input, to, threads);
      },
      "logits"_a.noconvert(), "allowed"_a.noconvert().none(), "settings"_a.noconvert(), "numbers"_a.noconvert().none(),
      "out"_a.noconvert(), "threads"_a);
}

void bind_linear(nb::module_& m) {
  m.def("linear_available", &linear_available, "Whether the instruction set in use has the linear layer.");
  m.def(
      "linear",
      [](const In<float>& x, const AnyTensor& weight, const std::optional<AnyTensor>& bias, const AnyOut& out,
         int threads) {
        constexpr nb::dlpack::dtype bfloat16{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
        const nb::dlpack::dtype type = weight.dtype();
        require(linear_available(), "the instruction set in use has no linear layer");
        require(x.ndim() == 2, "x must be [rows, inputs], got " + shape_text(x));
        require(weight.ndim() == 2 && (type == bfloat16 || type == nb::dtype<float>()) &&
                    weight.shape(1) == x.shape(1) && (weight.shape(1) == 1 || weight.stride(1) == 1) &&
                    (weight.shape(0) == 1 || weight.stride(0) == static_cast<int64_t>(weight.shape(1))),
                "weight must be contiguous bfloat16 or float32 [outputs, " + std::to_string(x.shape(1)) + "], got " +
                    shape_text(weight));
        require(out.ndim() == 2 && out.dtype() == type && out.shape(0) == x.shape(0) && out.shape(1) == weight.shape(0),
                "out must be [rows, outputs] of the weight's type, got " + shape_text(out));
        if (bias) {
          require(bias->ndim() == 1 && bias->dtype() == type && bias->shape(0) == weight.shape(0) &&
                      (bias->shape(0) == 1 || bias->stride(0) == 1),
                  "bias must be contiguous [outputs] of the weight's type, got " + shape_text(*bias));
        }
        const LinearInput input{x.data(),
                                weight.data(),
                                bias ? bias->data() : nullptr,
                                type == bfloat16 ? Dtype::bf16 : Dtype::f32,
                                static_cast<int64_t>(x.shape(0)),
                                static_cast<int64_t>(x.shape(1)),
                                static_cast<int64_t>(weight.shape(0))};
        void* const to = out.data();
        const nb::gil_scoped_release release;
        linear(input, to, threads);
      },
      "x"_a.noconvert(), "weight"_a.noconvert(), "bias"_a.noconvert().none(), "out"_a.noconvert(), "threads"_a);
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
  bind_candidates(m);
  bind_fuse_candidates(m);
  bind_step(m, "fuse_step", true, [](const FuseInput& in, const FuseOutput& out, int t) { fuse_step(in, out, t); });
  bind_step(m, "fuse_full", false, [](const FuseInput& in, const FuseOutput& out, int t) { fuse_full(in, out, t); });
  bind_verify_draft(m);
  bind_sampling<int32_t>(m, "sample_tokens",
                         [](const SampleInput& in, int32_t* out, int t) { sample_tokens(in, out, t); });
  bind_sampling<float>(m, "token_probs", [](const SampleInput& in, float* out, int t) { token_probs(in, out, t); });
  bind_linear(m);
}

}  // namespace ensemble

#include "fuse_common.h"

#include <algorithm>

#include "numerics.h"

namespace ensemble {

TopkResults::TopkResults(const FuseInput& in, const FuseOutput& out)
    : rows_(in.rows),
      k_(in.k),
      values_(in.models.size() * static_cast<size_t>(in.rows * in.k)),
      ids_(values_.size()),
      flags_(in.models.size() * static_cast<size_t>(in.rows)) {
  for (size_t m = 0; m < in.models.size(); ++m) {
    const size_t at = m * static_cast<size_t>(rows_);
    requests_.push_back({in.models[m].logits, in.models[m].allowed, k_, values_.data() + at * k_, ids_.data() + at * k_,
                         out.logsumexp + at, out.model_entropy + at, flags_.data() + at});
  }
}

int32_t TopkResults::flags(int64_t row) const {
  int32_t all = 0;
  for (const TopkRequest& request : requests_) all |= request.flags[row];
  return all;
}

void TopkResults::finish_row(const TopkStages& stages, int64_t row, const FuseInput& in, const FuseOutput& out) const {
  for (size_t m = 0; m < requests_.size(); ++m) {
    stages.finish_row(m, row);
    const ModelInput& model = in.models[m];
    const int64_t at = static_cast<int64_t>(m) * rows_ + row;
    const int32_t best = ids(static_cast<int64_t>(m), row)[0];
    const int32_t* const eos_end = model.eos_ids.data + model.eos_ids.size;
    const bool is_end = best >= 0 && std::find(model.eos_ids.data, eos_end, best) != eos_end;
    out.top_cid[at] = is_end ? static_cast<int32_t>(in.prefixes.size - 1) : model.to_cid.at(best);
    out.top_prob[at] = probability(maximum(static_cast<int64_t>(m), row), out.logsumexp[at]);
  }
}

int32_t emitted_id(const ModelInput& primary, int32_t cid) {
  const int32_t exact = primary.exact_id.at(cid);
  return exact >= 0 ? exact : primary.piece_id.at(cid);
}

bool out_of_reach(const ModelInput& primary, const RowReader& reader, int32_t cid, int64_t size) {
  const Table& eos_ids = primary.eos_ids;
  if (cid == size - 1 && eos_ids.size > 0) {
    return std::none_of(eos_ids.data, eos_ids.data + eos_ids.size, [&](int32_t id) { return reader.allows(id); });
  }
  const int32_t id = emitted_id(primary, cid);
  return id >= 0 && !reader.allows(id);
}

void write_decision(const Decision& d, int64_t row, int32_t primary_top, const FuseInput& in, const FuseOutput& out) {
  out.cid[row] = d.choice;
  out.max_prob[row] = d.max_prob;
  out.entropy[row] = d.entropy;
  out.js[row] = d.js;
  out.ensembled[row] = d.ensembled;
  out.sharpened[row] = d.sharpened;
  out.flags[row] = d.flags;

  // The id that the primary emits: its own best one where it chose alone, else the candidate's.
  const ModelInput& primary = in.models[0];
  int32_t id = primary_top;
  if (d.choice < 0) {
    id = -1;
  } else if (d.ensembled) {
    id = emitted_id(primary, d.choice);
    if (d.choice == in.prefixes.size - 1 && primary.eos_ids.size > 0) {
      id = RowReader(primary.logits, primary.allowed, row).best_end(primary.eos_ids);
    }
  }
  out.primary_id[row] = id;
}

}  // namespace ensemble

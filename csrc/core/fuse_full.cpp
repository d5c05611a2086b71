#include <algorithm>
#include <cmath>
#include <vector>

#include "dispatch.h"
#include "fuse.h"
#include "fuse_common.h"
#include "numerics.h"
#include "pool.h"
#include "select.h"
#include "topk_stats.h"

namespace ensemble {
namespace {

struct Workspace {
  std::vector<float> log_p, p, probs, group_max;
  std::vector<uint8_t> consulted;
  std::vector<int32_t> primary_tops;
};

// log P_m of every candidate: its exact id's, −inf without one; END: the sum over the EOS ids.
void candidate_log_probs(const ModelInput& model, int64_t row, int64_t size, float maximum, float log_total,
                         float* log_p) {
  if (maximum == -kInfinity) {
    std::fill(log_p, log_p + size, -kInfinity);
    return;
  }
  const RowReader reader(model.logits, model.allowed, row);
  const float top = bounded(maximum);
  const auto log_of = [&](int32_t id) {
    const float below = bounded(reader.read(id)) - top;
    return below > kFloor ? below - log_total : -kInfinity;
  };
  for (int64_t cid = 0; cid + 1 < size; ++cid) {
    const int32_t id = model.exact_id.data[cid];
    log_p[cid] = id >= 0 ? log_of(id) : -kInfinity;
  }
  float highest = -kInfinity;
  for (int64_t e = 0; e < model.eos_ids.size; ++e) highest = std::max(highest, log_of(model.eos_ids.data[e]));
  log_p[size - 1] = highest;
  if (highest == -kInfinity) return;
  double total = 0.0;
  for (int64_t e = 0; e < model.eos_ids.size; ++e) {
    total += std::exp(static_cast<double>(log_of(model.eos_ids.data[e])) - highest);
  }
  log_p[size - 1] = static_cast<float>(highest + std::log(total));
}

// The candidates that the primary cannot emit under one row's mask.
std::vector<int32_t> unreachable(const FuseInput& in, int64_t row) {
  const RowReader reader(in.models[0].logits, in.models[0].allowed, row);
  std::vector<int32_t> cids;
  for (int64_t cid = 0; cid < in.prefixes.size; ++cid) {
    if (out_of_reach(in.models[0], reader, static_cast<int32_t>(cid), in.prefixes.size)) cids.push_back(cid);
  }
  return cids;
}

// The k most probable candidates above 0 by (probability descending, candidate ascending); returns how many.
int32_t most_probable(std::vector<float>& probs, int64_t size, int64_t k, std::vector<float>& group_max, float* values,
                      int32_t* cids) {
  group_max.resize(static_cast<size_t>(ceil_div(size, kGroup)));
  for (int64_t begin = 0; begin < size; begin += kGroup) {
    float top = -kInfinity;
    for (int64_t i = begin; i < std::min(begin + kGroup, size); ++i) {
      if (!(probs[i] > 0.0f)) probs[i] = -kInfinity;
      top = std::max(top, probs[i]);
    }
    group_max[static_cast<size_t>(begin / kGroup)] = top;
  }
  select_topk(probs.data(), Dtype::f32, size, nullptr, group_max.data(), k, values, cids);
  int32_t count = 0;
  for (int64_t j = 0; j < k; ++j) {
    if (cids[j] >= 0) {
      ++count;
    } else {
      values[j] = 0.0f;
    }
  }
  return count;
}

}  // namespace

void fuse_full(const FuseInput& in, const FuseOutput& out, int threads) {
  const int64_t models = static_cast<int64_t>(in.models.size());
  const int64_t size = in.prefixes.size;
  const int64_t stride = ceil_div(size, 16) * 16 + 16;
  TopkResults top(in, out);
  TopkStages& stages = thread_stages();
  stages.stream(top.requests(), threads);
  const Transcendentals math = vectorised_transcendentals();

  std::vector<uint8_t> known(static_cast<size_t>(size), 0);  // which candidates any model can emit
  for (const ModelInput& model : in.models) {
    for (int64_t cid = 0; cid + 1 < size; ++cid) known[cid] |= model.exact_id.data[cid] >= 0;
    known[size - 1] |= model.eos_ids.size > 0;
  }

  const bool one_mask = in.models[0].allowed.row_stride == 0;
  const std::vector<int32_t> never = one_mask && in.rows > 0 ? unreachable(in, 0) : std::vector<int32_t>{};

  parallel_for(threads, in.rows, 1, [&](int64_t row) {
    static thread_local Workspace w;
    top.finish_row(stages, row, in, out);
    w.log_p.resize(static_cast<size_t>(models * stride));
    w.p.resize(w.log_p.size());
    w.probs.resize(static_cast<size_t>(stride));
    w.consulted.resize(static_cast<size_t>(models));
    const std::vector<int32_t> own = one_mask ? std::vector<int32_t>{} : unreachable(in, row);
    for (int64_t m = 0; m < models; ++m) {
      const int64_t at = m * in.rows + row;
      float* const log_p = w.log_p.data() + m * stride;
      candidate_log_probs(in.models[m], row, size, top.maximum(m, row), stages.log_total(m, row), log_p);
      for (const int32_t cid : one_mask ? never : own) log_p[cid] = -kInfinity;
      std::copy(log_p, log_p + size, w.p.data() + m * stride);
      math.exp(w.p.data() + m * stride, size);
      w.consulted[m] = out.logsumexp[at] > -kInfinity;
    }
    w.primary_tops.resize(static_cast<size_t>(in.k));
    for (int64_t j = 0; j < in.k; ++j) w.primary_tops[j] = in.models[0].to_cid.at(top.ids(0, row)[j]);

    const Distributions d{models, size, stride, w.log_p.data(), w.p.data(), true, nullptr, known.data(), w.consulted.data()};
    const PrimaryChoice primary{w.primary_tops.data(), in.k, out.top_prob[row], out.top_cid[row]};
    const Decision decision = decide(d, primary, in.prefixes, in.settings, row, math, w.probs.data(), out.kl + row, in.rows);
    write_decision(decision, row, top.ids(0, row)[0], in, out);
    out.flags[row] |= top.flags(row);
    out.count[row] = most_probable(w.probs, size, in.k, w.group_max, out.probs + row * in.k, out.cids + row * in.k);
  });
}

}  // namespace ensemble

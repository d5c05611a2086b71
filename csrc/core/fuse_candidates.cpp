#include <algorithm>
#include <cmath>
#include <vector>

#include "fuse.h"
#include "numerics.h"
#include "pool.h"

namespace ensemble {

Decision fuse_row(const float* scores, int64_t stride, const float* logsumexp, int64_t logsumexp_stride,
                  const int32_t* cids, int64_t width, int64_t models, const PrimaryChoice& primary,
                  const PrefixRanges& prefixes, const FuseSettings& settings, int64_t row, float* probs, float* kl,
                  int64_t kl_stride) {
  static thread_local std::vector<float> log_q, p, row_scores;
  static thread_local std::vector<uint8_t> consulted;
  const size_t room = static_cast<size_t>(models * width);
  log_q.resize(room);
  p.resize(room);
  row_scores.resize(static_cast<size_t>(width));
  consulted.resize(static_cast<size_t>(models));
  bool nan = false;
  for (int64_t m = 0; m < models; ++m) {
    const float log_z = logsumexp[m * logsumexp_stride];
    nan |= std::isnan(log_z);
    consulted[m] = bounded(log_z) > -kInfinity;
    for (int64_t i = 0; i < width; ++i) {
      const float score = scores[m * stride + i];
      const bool inside = cids[i] >= 0;
      nan |= inside && std::isnan(score);
      row_scores[i] = inside ? bounded(score) : -kInfinity;
      p[m * width + i] = probability(row_scores[i], log_z);
    }
    log_softmax(row_scores.data(), width, log_q.data() + m * width);
  }
  const Distributions d{models, width, width, log_q.data(), p.data(), false, cids, nullptr, consulted.data()};
  Decision decision = decide(d, primary, prefixes, settings, row, kExact, probs, kl, kl_stride);
  if (nan) decision.flags |= kFlagNan;
  return decision;
}

void fuse_candidates(const CandidateScores& in, const PrefixRanges& prefixes, const FuseSettings& settings,
                     const FusedOutput& out, int threads) {
  parallel_for(threads, in.rows, 4, [&](int64_t row) {
    const PrimaryChoice primary{in.tops + row * in.tops_width, in.tops_width,
                                probability(in.primary_max[row], in.logsumexp[row]), in.primary_cid[row]};
    const Decision d =
        fuse_row(in.scores + row * in.width, in.rows * in.width, in.logsumexp + row, in.rows, in.cids + row * in.width,
                 in.width, in.models, primary, prefixes, settings, row, out.probs + row * in.width, out.kl + row, in.rows);
    out.choice[row] = d.choice;
    out.max_prob[row] = d.max_prob;
    out.entropy[row] = d.entropy;
    out.js[row] = d.js;
    out.ensembled[row] = d.ensembled;
    out.sharpened[row] = d.sharpened;
    out.flags[row] = d.flags;
  });
}

}  // namespace ensemble

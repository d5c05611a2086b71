#include <algorithm>
#include <vector>

#include "fuse.h"
#include "fuse_common.h"
#include "numerics.h"
#include "pool.h"
#include "topk_stats.h"

namespace ensemble {

void fuse_step(const FuseInput& in, const FuseOutput& out, int threads) {
  const int64_t models = static_cast<int64_t>(in.models.size());
  const int64_t width = models * in.k;
  TopkResults top(in, out);
  TopkStages& stages = thread_stages();
  stages.stream(top.requests(), threads);

  parallel_for(threads, in.rows, 1, [&](int64_t row) {
    static thread_local std::vector<float> scores;
    static thread_local std::vector<int32_t> primary_tops;
    top.finish_row(stages, row, in, out);

    int32_t* const cids = out.cids + row * width;
    const int64_t used = std::min<int64_t>(in.k, in.settings.top_k[row]);
    primary_tops.resize(static_cast<size_t>(in.k));
    for (int64_t m = 0; m < models; ++m) {
      const int32_t* const ids = top.ids(m, row);
      for (int64_t j = 0; j < in.k; ++j) {
        const int32_t cid = j < used ? in.models[m].to_cid.at(ids[j]) : -1;
        cids[m * in.k + j] = cid;
        if (m == 0) primary_tops[j] = cid;
      }
    }
    out.count[row] = make_union(cids, width);

    scores.resize(static_cast<size_t>(models * width));
    for (int64_t m = 0; m < models; ++m) {
      const ModelInput& model = in.models[m];
      const Table& ids_of = in.settings.oov[row] == 1 ? model.exact_id : model.piece_id;
      gather(RowReader(model.logits, model.allowed, row), cids, width, ids_of, model.eos_ids, scores.data() + m * width);
    }
    const RowReader primary_reader(in.models[0].logits, in.models[0].allowed, row);
    for (int64_t i = 0; i < out.count[row]; ++i) {
      if (!out_of_reach(in.models[0], primary_reader, cids[i], in.prefixes.size)) continue;
      for (int64_t m = 0; m < models; ++m) scores[m * width + i] = -kInfinity;
    }
    const PrimaryChoice primary{primary_tops.data(), in.k, out.top_prob[row], out.top_cid[row]};
    const Decision d = fuse_row(scores.data(), width, out.logsumexp + row, in.rows, cids, width, models, primary,
                                in.prefixes, in.settings, row, out.probs + row * width, out.kl + row, in.rows);
    write_decision(d, row, top.ids(0, row)[0], in, out);
    out.flags[row] |= top.flags(row);
  });
}

}  // namespace ensemble

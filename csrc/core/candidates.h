// Candidates of one row: the union of every model's best ids, and one model's scores of them.
#pragma once

#include <cstdint>

#include "types.h"

namespace ensemble {

struct Table {
  const int32_t* data;
  int64_t size;

  // −1 for what the table has no entry for.
  int32_t at(int32_t i) const { return i >= 0 && i < size ? data[i] : -1; }
};

// Sorts the candidates in cids[0 .. n) ascending without duplicates, −1 padded (negative ones are dropped); returns
// how many there are.
int32_t make_union(int32_t* cids, int64_t n);

// One row of one model as the operators read single logits from it.
class RowReader {
 public:
  RowReader(const Logits& logits, const Allowed& allowed, int64_t row)
      : row_(row_pointer(logits, row)), dtype_(logits.dtype), cols_(logits.cols), allowed_(allowed.row(row)) {}

  // The logit of `id`; −inf where the id is out of range, not allowed or its logit is NaN.
  float read(int32_t id) const;
  // Whether the mask allows `id`, which lies within the vocabulary.
  bool allows(int32_t id) const {
    return allowed_ == nullptr || ((static_cast<uint32_t>(allowed_[id / 32]) >> (id % 32)) & 1u) != 0;
  }
  // Log-sum-exp of the logits of the EOS ids; +inf where one is +inf, −inf where nothing is above −inf.
  float end_score(const Table& eos_ids) const;
  // The allowed EOS id with the largest logit, the first among equals (also where all are −inf); −1 without any.
  int32_t best_end(const Table& eos_ids) const;

 private:
  const void* row_;
  Dtype dtype_;
  int64_t cols_;
  const int32_t* allowed_;
};

// scores[i] of candidate cids[i]: the logit of ids_of[cid], END's score for the last candidate, −inf for padding.
void gather(const RowReader& row, const int32_t* cids, int64_t n, const Table& ids_of, const Table& eos_ids,
            float* scores);

}  // namespace ensemble

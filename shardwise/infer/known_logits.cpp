#include "shardwise/infer/known_logits.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "shardwise/kernels/logit_keys.h"
#include "shardwise/kernels/queued_copy.h"

namespace shardwise::infer {
namespace {

constexpr int64_t kNoKey = std::numeric_limits<int64_t>::min();

/// Returns the indices in the rows of a shard of each row's `ids`; 0 for those that another shard has.
/// Shapes: [n, the most ids of a row].
at::Tensor indices_of(const std::vector<std::vector<int64_t>>& ids, const base::Range& shard) {
  size_t longest = 0;
  for (const std::vector<int64_t>& of_row : ids) longest = std::max(longest, of_row.size());
  const at::Tensor all = at::zeros({std::ssize(ids), static_cast<int64_t>(longest)}, at::kLong);
  auto* row = all.mutable_data_ptr<int64_t>();
  for (const std::vector<int64_t>& of_row : ids) {
    for (size_t i = 0; i < of_row.size(); ++i)
      if (of_row[i] >= shard.begin && of_row[i] < shard.end) row[i] = of_row[i] - shard.begin;
    row += longest;
  }
  return all;
}

}  // namespace

int64_t KnownLogits::first_above(int64_t id, double bound) const {
  const auto found = std::find_if(logits_.lower_bound(id), logits_.end(), [bound](const auto& entry) {
    return std::isnan(entry.second) || entry.second > bound;
  });
  return found == logits_.end() ? end() : found->first;
}

at::Tensor chosen_keys(const at::Tensor& logits, const base::Range& shard, int64_t count,
                       const std::vector<std::vector<int64_t>>& ids) {
  const at::Tensor indices = indices_of(ids, shard);
  const int64_t n = logits.size(0), v = logits.size(1), c = indices.size(1);
  const int64_t most = count + c;  // the highest may be those of `ids`
  if (v == 0) return at::full({n, most + c}, kNoKey, logits.options().dtype(at::kLong));
  const at::Tensor keys = kernels::logit_keys(logits);
  at::Tensor chosen =
      std::get<0>(keys.topk(std::min(v, most), /*dim=*/1, /*largest=*/true, /*sorted=*/false));
  if (v < most) chosen = at::constant_pad_nd(chosen, {0, most - v}, kNoKey);
  if (c == 0) return chosen;
  return at::cat({chosen, keys.gather(/*dim=*/1, kernels::queued_copy(indices, keys.device()))}, /*dim=*/1);
}

std::vector<KnownLogits> known_logits(const at::Tensor& keys, const base::Split& vocab) {
  std::vector<std::map<int64_t, double>> known(static_cast<size_t>(keys.size(1)));
  const int64_t* key = keys.const_data_ptr<int64_t>();
  for (int rank = 0; rank < vocab.ranks(); ++rank) {
    for (std::map<int64_t, double>& of_row : known) {
      for (int64_t i = 0; i < keys.size(2); ++i, ++key) {
        if (*key == kNoKey) continue;
        const kernels::KeyedLogit found = kernels::logit_of_key(*key);
        of_row[vocab.range(rank).begin + found.index] = found.logit;
      }
    }
  }
  return {std::make_move_iterator(known.begin()), std::make_move_iterator(known.end())};
}

std::vector<KnownLogits> fetch_logits(const at::Tensor& logits, const base::Split& vocab, int64_t count,
                                      const std::vector<std::vector<int64_t>>& ids,
                                      const comm::Group& group) {
  const at::Tensor chosen = chosen_keys(logits, vocab.range(group.rank()), count, ids);
  const auto ranks = base::Split::even("ranks", group.size(), group.size());
  return known_logits(group.all_gather(chosen.unsqueeze(0), ranks).cpu(), vocab);
}

}  // namespace shardwise::infer

#include "shardwise/infer/known_logits.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "shardwise/kernels/logit_keys.h"
#include "shardwise/kernels/queued_copy.h"

namespace shardwise::infer {
namespace {

/// Returns the indices of each row's `ids`, as far as it has them, [n, c] with padding.
at::Tensor indices_of(const std::vector<std::vector<int64_t>>& ids, int64_t begin, int64_t v) {
  std::vector<std::vector<int64_t>> indices;
  size_t longest = 0;
  for (const std::vector<int64_t>& of_row : ids) {
    indices.emplace_back();
    for (const int64_t id : of_row)
      if (id >= begin && id < begin + v) indices.back().push_back(id - begin);
    longest = std::max(longest, indices.back().size());
  }
  const at::Tensor all = at::zeros({std::ssize(ids), static_cast<int64_t>(longest)}, at::kLong);
  for (size_t row = 0; row < indices.size(); ++row)
    std::ranges::copy(indices[row], all.mutable_data_ptr<int64_t>() + row * longest);
  return all;
}

}  // namespace

int64_t KnownLogits::first_above(int64_t id, double bound) const {
  const auto found = std::find_if(logits_.lower_bound(id), logits_.end(), [bound](const auto& entry) {
    return std::isnan(entry.second) || entry.second > bound;
  });
  return found == logits_.end() ? end() : found->first;
}

std::vector<KnownLogits> fetch_logits(const at::Tensor& logits, int64_t begin, int64_t count,
                                      const std::vector<std::vector<int64_t>>& ids) {
  const int64_t n = logits.size(0), v = logits.size(1);
  if (v == 0) return std::vector<KnownLogits>(static_cast<size_t>(n), KnownLogits({}));
  const at::Tensor keys = kernels::logit_keys(logits), indices = indices_of(ids, begin, v);
  // The highest may be those of `ids`.
  at::Tensor fetched = std::get<0>(keys.topk(std::min(v, count + indices.size(1)), /*dim=*/1,
                                             /*largest=*/true, /*sorted=*/false));
  if (indices.size(1) > 0)
    fetched =
        at::cat({fetched, keys.gather(/*dim=*/1, kernels::queued_copy(indices, keys.device()))}, /*dim=*/1);
  const at::Tensor on_host = fetched.cpu();
  const int64_t* key = on_host.const_data_ptr<int64_t>();
  std::vector<KnownLogits> known;
  for (int64_t row = 0; row < n; ++row) {
    std::map<int64_t, double> of_row;
    for (int64_t i = 0; i < on_host.size(1); ++i) {
      const kernels::KeyedLogit found = kernels::logit_of_key(*key++);
      of_row[begin + found.index] = found.logit;
    }
    known.emplace_back(std::move(of_row));
  }
  return known;
}

}  // namespace shardwise::infer

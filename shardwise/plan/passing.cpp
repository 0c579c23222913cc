#include "shardwise/plan/passing.h"

namespace shardwise::plan {

Entries both(Entries entries, const Entries& more) {
  entries.insert(entries.end(), more.begin(), more.end());
  return entries;
}

int64_t Passing::factors(int64_t features_of_both) const {
  if (workload_.element_bytes >= 4) return 0;
  const int64_t rows = is_cut() ? workload_.sequence().largest() * workload_.batch_size : sizes_.share().rows;
  return rows * features_of_both * workload_.factor_bytes;
}

Entries Passing::row_forward() const {
  return {{"row product, a term", sizes_.whole(), workload_.term_pool()},
          {"row product's sum", is_cut() ? sizes_.stream() : 0}};
}

Entries Passing::summed() const {
  return {{"row product's sum", sizes_.stream(), is_cut() ? Pool::own : workload_.term_pool()},
          {"masked sum", workload_.has_dropout ? sizes_.stream() : 0}};
}

Entries Passing::norm_backward() const {
  return {{"norm's output gradient", sizes_.stream(), is_cut() ? Pool::own : workload_.term_pool()},
          {"norm's input gradient", sizes_.stream()}};
}

Entries Passing::column_backward(int64_t out, const Wanted& wanted) const {
  const bool gathers = wanted.weight && is_cut() && workload_.save_for_backward == SaveForBackward::shard;
  return {
      {"output gradient", sizes_.features(out)},
      {"input gradient, a term", wanted.input ? sizes_.whole() : 0, workload_.term_pool()},
      {"gathered input", gathers ? sizes_.whole() : 0},
      {"factors of the weight gradient", wanted.weight ? factors(out + workload_.config.hidden_size) : 0}};
}

Entries Passing::stream_gradient(bool is_kept, const std::string& name) const {
  return {{name, is_kept ? sizes_.stream() : 0}};
}

Entries Passing::row_backward(int64_t in, const Wanted& wanted, bool keeps_stream) const {
  const bool in_place = workload_.term_pool() == Pool::shared, is_masked = workload_.has_dropout;
  const bool gathers = is_cut() && (wanted.input || wanted.weight);
  const int64_t dx = wanted.input ? sizes_.features(in) : 0;
  const int64_t copies = wanted.weight ? factors(workload_.config.hidden_size + in) : 0;
  // Rank by rank both gradients are made together, of the whole the weight's before the input's.
  const bool together = is_cut();
  Entry gathered{"gathered stream's gradient", gathers ? sizes_.whole() : 0, workload_.term_pool()};
  if (in_place) gathered.name = "staged stream's gradient";
  if (in_place && gathers) gathered.bytes = sizes_.stream();
  return both(stream_gradient(keeps_stream || !is_masked),
              {{"masked gradient", is_masked ? sizes_.stream() : 0},
               gathered,
               {"input gradient", together || dx >= copies ? dx : 0},
               {"factors of the weight gradient", together || copies > dx ? copies : 0}});
}

}  // namespace shardwise::plan

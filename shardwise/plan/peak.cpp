#include "shardwise/plan/peak.h"

#include <algorithm>
#include <initializer_list>

#include "shardwise/plan/communication.h"

namespace shardwise::plan {
namespace {

/// Sizes in bytes of what backward makes and drops again.
class Passing {
 public:
  Passing(const Workload& workload, int rank)
      : workload_(workload), share_(share_of(workload, rank)), h_(workload.config.hidden_size) {}

  int64_t features(int64_t count) const { return share_.rows * count * workload_.element_bytes; }
  int64_t stream() const { return share_.stream_rows * h_ * workload_.element_bytes; }

  /// Column-parallel, h → `out` features: dX is a sum's term until it is reduced.
  Entries column(int64_t out) const {
    const bool gathers = is_sharded() && workload_.gathered == Gathered::again;
    return {{"output gradient", features(out)},
            {"input gradient, a term", features(h_), workload_.term_pool()},
            {"gathered input", gathers ? features(h_) : 0},
            {"factors of the weight gradient", factors(out + h_)}};
  }

  /// Row-parallel, `in` → h features.
  Entries row(int64_t in) const {
    const bool in_place = workload_.term_pool() == Pool::shared;
    const int64_t gathered = !is_sharded() ? 0 : in_place ? stream() : features(h_);
    return {{"stream's gradient", stream()},
            {in_place ? "staged stream's gradient" : "gathered stream's gradient", gathered,
             workload_.term_pool()},
            {"input gradient", features(in)},
            {"factors of the weight gradient", factors(h_ + in)}};
  }

 private:
  bool is_sharded() const { return workload_.tp > 1 && workload_.stream == Stream::tp_sp; }
  /// Weight gradients of 16-bit models multiply copies, of one rank's rows at a time under TP+SP.
  int64_t factors(int64_t features_of_both) const {
    if (workload_.element_bytes >= 4) return 0;
    const int64_t rows = is_sharded() ? workload_.sequence().largest() * workload_.batch_size : share_.rows;
    return rows * features_of_both * workload_.factor_bytes;
  }

  const Workload& workload_;
  Share share_;
  int64_t h_;
};

Entries both(Entries entries, const Entries& more) {
  entries.insert(entries.end(), more.begin(), more.end());
  return entries;
}

/// What every other block has saved, what is left of the last one, and what is alive besides.
Moment in_backward(const std::string& name, const Entries& saved, int64_t other_blocks,
                   const Entries& in_last, const Entries& alive) {
  Moment moment{name, {}};
  for (const Entry& entry : saved)
    moment.entries.push_back({entry.name, other_blocks * entry.bytes, entry.pool});
  moment.entries = both(both(std::move(moment.entries), in_last), alive);
  return moment;
}

Entries without(Entries entries, std::initializer_list<const char*> freed) {
  std::erase_if(entries, [&](const Entry& entry) { return std::ranges::count(freed, entry.name) > 0; });
  return entries;
}

/// The ranks' terms and their sum, the stream's first value.
Moment in_embedding(const Workload& workload, const Passing& passing) {
  const int64_t h = workload.config.hidden_size;
  const Pool sum_pool = workload.stream == Stream::tp ? workload.term_pool() : Pool::own;
  return {"embedding",
          {{"looked up, a term", passing.features(h), workload.term_pool()},
           {"stream", workload.tp > 1 ? passing.stream() : 0, sum_pool}}};
}

Moment in_optimizer(const Workload& workload) {
  return {"optimizer",
          {{"synchronised gradients", synchronised_elements(workload) * workload.accumulator_bytes(),
            workload.term_pool()}}};
}

}  // namespace

std::vector<Moment> fullest_moments(const Workload& workload, int rank) {
  const Share share = share_of(workload, rank);
  const Passing passing(workload, rank);
  const int64_t layers = workload.config.num_hidden_layers, d = workload.config.head_dim;
  const int64_t qkv = (share.heads + 2 * share.kv_heads) * d, inner = workload.mlp_inputs() * share.ffn;
  const Entries saved = saved_by_block(workload, rank), head = saved_by_head(workload, rank);
  const Entries in_down = read_by_block(workload, rank);  // what was not kept has been made again
  const Entries in_activation = without(in_down, {"down input"});
  const Entries in_mlp = without(in_activation, {"gate and up", "up"});
  const Entries in_attention = without(in_mlp, {"mlp input", "norm2 input", "norm2 rstd", "norm2 mean"});
  const Entries in_qkv = without(in_attention, {"q", "k", "v", "attention output", "attention lse"});
  const Entries stream = {{"stream's gradient", passing.stream()}};
  // Recomputing in full, backward holds the gradient that it was called with until the block is done.
  const Entries streams =
      workload.recompute == Recompute::full ? both(stream, {{"block's gradient", passing.stream()}}) : stream;
  const auto backward_of = [&](const char* name, const Entries& in_last, const Entries& alive) {
    return in_backward(name, saved, layers - 1, in_last, alive);
  };
  return {
      in_embedding(workload, passing),
      backward_of("loss", both(saved, head), {{"gradient of logits", passing.features(share.vocab)}}),
      backward_of("head", both(saved, without(head, {"logits", "loss lse"})), passing.column(share.vocab)),
      backward_of("down", in_down, passing.row(share.ffn)),
      backward_of("activation", in_activation,
                  both(stream, {{"gradients of the activation", passing.features(inner + share.ffn)}})),
      backward_of("mlp", in_mlp, both(stream, passing.column(inner))),
      backward_of("attention", in_attention,
                  both(streams, {{"gradients of attention", passing.features(share.heads * d + 2 * qkv)}})),
      backward_of("qkv", in_qkv, both(streams, passing.column(qkv))),
      in_optimizer(workload),
  };
}

Peak training_peak(const Workload& workload, int rank) {
  const std::vector<Moment> moments = fullest_moments(workload, rank);
  const auto fullest = [&](Pool pool) {
    return *std::ranges::max_element(moments, {}, [&](const Moment& m) { return total(m.entries, pool); });
  };
  return {model_states(workload, rank), fullest(Pool::own), fullest(Pool::shared)};
}

}  // namespace shardwise::plan

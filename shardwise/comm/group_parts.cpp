// Group's collectives in parts. In shared memory a part is an exposure of the whole tensor, which says how
// far its rank has written it; elsewhere it is a c10d call that goes on by itself.
#include <ATen/ops/empty_like.h>

#include <utility>

#include "shardwise/comm/checks.h"
#include "shardwise/comm/chunked_all_gather.h"
#include "shardwise/comm/chunked_reduce_scatter.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/device_sum.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"
#include "shardwise/comm/purpose.h"
#include "shardwise/comm/shm/reduce.h"

namespace shardwise::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor rows_of(const at::Tensor& x, const base::Range& range) {
  return x.narrow(0, range.begin, range.size());
}

/// out = the sum of `terms`, which come in rank order, each contiguous and as large as `out`.
void sum_into(at::Tensor& out, const std::vector<at::Tensor>& terms) {
  if (!out.is_cpu()) return sum_on_device(out, terms);
  std::vector<const void*> sources;
  for (const at::Tensor& term : terms) sources.push_back(term.const_data_ptr());
  void* target = out.mutable_data_ptr();
  shm::reduce_kernel(out.scalar_type(), Reduce::sum)(sources.data(), int(sources.size()), &target,
                                                     /*copies=*/1, out.numel());
}

/// What both forms of a ChunkedReduceScatter work on.
struct Sum {
  at::Tensor x;
  base::Split split;
  int rank;
  uint64_t number;  // of the group's begun sums
  std::shared_ptr<Counters> counters;

  int ranks() const { return split.ranks(); }
  at::Tensor rows(int of) const { return rows_of(x, split.range(of)); }
  at::Tensor own_rows_of(const at::Tensor& whole) const { return rows_of(whole, split.range(rank)); }
};

/// The own rows are made last: by then the peers' parts of them are there.
class ExposedSum final : public ChunkedReduceScatter {
 public:
  ExposedSum(Sum sum, std::shared_ptr<SymmetricHeap> symmetric)
      : sum_(std::move(sum)),
        symmetric_(std::move(symmetric)),
        wholes_(base::Split::even("partial sums", sum_.split.size() * sum_.ranks(), sum_.ranks())) {}

  int nth(int i) const override { return (sum_.rank + 1 + i) % sum_.ranks(); }

  void made(int i) override {
    const Timed timed(*sum_.counters, symmetric_.get());
    if (nth(i) != sum_.rank)
      exposed_.push_back(symmetric_->share_shard(sum_.x, wholes_, purpose_of(sum_.number, uint64_t(i))));
  }

  void finish(at::Tensor& out) override {
    const Timed timed(*sum_.counters, symmetric_.get());
    std::vector<at::Tensor> terms;
    for (int peer = 0; peer < sum_.ranks(); ++peer) terms.push_back(sum_.own_rows_of(whole_of(peer)));
    sum_into(out, terms);
    exposed_.clear();
    sum_.x.reset();
  }

 private:
  /// Where `peer` has written at least this rank's rows.
  at::Tensor whole_of(int peer) const {
    if (peer == sum_.rank) return sum_.x;
    const int part =
        (sum_.rank - peer - 1 + sum_.ranks()) % sum_.ranks();  // the peer's nth(part) is this rank
    return exposed_[size_t(part)]->read(peer);
  }

  Sum sum_;
  std::shared_ptr<SymmetricHeap> symmetric_;
  base::Split wholes_;  // every rank's "shard" is its whole tensor
  std::vector<std::shared_ptr<PeerShards>> exposed_;
};

/// Rows go to their owner, which sums them in rank order: c10d's own sums have no order that one can rely on.
class GatheredSum final : public ChunkedReduceScatter {
 public:
  GatheredSum(Sum sum, c10::intrusive_ptr<c10d::Backend> backend)
      : sum_(std::move(sum)), backend_(std::move(backend)) {}

  int nth(int i) const override { return i; }

  void made(int i) override {
    const Timed timed(*sum_.counters, nullptr);
    const c10::NoGradGuard no_grad;
    if (sum_.split.range(i).empty()) return;
    std::vector<at::Tensor> inputs = {sum_.rows(i)};
    std::vector<std::vector<at::Tensor>> outputs;
    if (i == sum_.rank) {
      for (int peer = 0; peer < sum_.ranks(); ++peer) terms_.push_back(at::empty_like(inputs[0]));
      outputs.push_back(terms_);
    }
    works_.push_back(backend_->gather(outputs, inputs, {.rootRank = i}));
  }

  void finish(at::Tensor& out) override {
    const Timed timed(*sum_.counters, nullptr);
    for (const WorkPtr& work : works_) work->wait();
    if (!terms_.empty()) sum_into(out, terms_);
    works_.clear();
    sum_.x.reset();
  }

 private:
  Sum sum_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<at::Tensor> terms_;
  std::vector<WorkPtr> works_;
};

/// For a backend whose calls end with their work: one of them, once all rows are made.
class SumByOneCall final : public ChunkedReduceScatter {
 public:
  SumByOneCall(Sum sum, c10::intrusive_ptr<c10d::Backend> backend)
      : sum_(std::move(sum)), backend_(std::move(backend)) {}

  int nth(int i) const override { return i; }
  void made(int) override {}
  void finish(at::Tensor& out) override {
    const Timed timed(*sum_.counters, nullptr);
    const c10::NoGradGuard no_grad;
    scatter_sum_by_calls(*backend_, out, sum_.x, sum_.split, /*dim=*/0);
    sum_.x.reset();
  }

 private:
  Sum sum_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

class BroadcastRows final : public ChunkedAllGather {
 public:
  BroadcastRows(at::Tensor whole, int own, std::shared_ptr<Counters> counters)
      : whole_(std::move(whole)), own_(own), counters_(std::move(counters)) {}

  void begin(const base::Split& split, c10d::Backend& backend) {
    for (int root = 0; root < split.ranks(); ++root) {
      std::vector<at::Tensor> rows = {rows_of(whole_, split.range(root))};
      works_.push_back(split.range(root).empty() ? WorkPtr() : backend.broadcast(rows, {.rootRank = root}));
    }
  }
  const at::Tensor& whole() const override { return whole_; }
  /// The own rows are there from the start; that they were sent is waited for at the end.
  void await(int rank) override {
    if (rank != own_) wait(rank);
    int left = 0;
    for (int peer = 0; peer < int(works_.size()); ++peer) left += peer != own_ && works_[size_t(peer)];
    if (left == 0) wait(own_);
  }

 private:
  void wait(int rank) {
    if (works_.empty() || !works_[size_t(rank)]) return;
    const Timed timed(*counters_, nullptr);
    std::exchange(works_[size_t(rank)], nullptr)->wait();
  }

  at::Tensor whole_;
  int own_;
  std::shared_ptr<Counters> counters_;
  std::vector<WorkPtr> works_;  // by rank; none once it was waited for
};

}  // namespace

std::unique_ptr<ChunkedReduceScatter> Group::reduce_scatter_chunked(const at::Tensor& x,
                                                                    const base::Split& split) const {
  check_whole("reduce_scatter_chunked", x, split, /*dim=*/0, size());
  SymmetricHeap* symmetric = state_->symmetric_heap();
  TORCH_CHECK_VALUE(size() > 1, "reduce_scatter_chunked: needs two ranks or more; got 1");
  check_begun("reduce_scatter_chunked", x, device(), symmetric);
  const Counted counted(*state_->counters, state_->shared.get(), Op::reduce_scatter,
                        reduce_scatter_bytes(x, split, rank()));
  Sum sum{x, split, rank(), ++*state_->begun_sums, state_->counters};
  if (symmetric) return std::make_unique<ExposedSum>(std::move(sum), state_->shared);
  if (is_synchronous(*state_->backend))
    return std::make_unique<SumByOneCall>(std::move(sum), state_->backend);
  return std::make_unique<GatheredSum>(std::move(sum), state_->backend);
}

std::shared_ptr<ChunkedAllGather> Group::all_gather_chunked(const at::Tensor& shard,
                                                            const base::Split& split) const {
  check_shard("all_gather_chunked", shard, split, /*dim=*/0, rank(), size());
  if (size() == 1) return std::make_shared<BroadcastRows>(shard, rank(), state_->counters);
  const Counted counted(*state_->counters, state_->shared.get(), Op::all_gather,
                        int64_t(shard.nbytes()) * (size() - 1));
  at::Tensor whole = empty_with_size(shard, /*dim=*/0, split.size());
  auto rows = std::make_shared<BroadcastRows>(whole, rank(), state_->counters);
  if (is_synchronous(*state_->backend)) {
    gather_by_calls(*state_->backend, whole, shard, split, /*dim=*/0);
    return rows;
  }
  rows_of(whole, split.range(rank())).copy_(shard);
  rows->begin(split, *state_->backend);
  return rows;
}

}  // namespace shardwise::comm

// Group's chunked collectives. With a symmetric heap a chunk is a share_shard of the full tensor, which marks
// how much of it the rank has written; otherwise a chunk is an asynchronous c10d call.
#include <ATen/ops/empty_like.h>

#include <utility>

#include "shardwise/comm/checks.h"
#include "shardwise/comm/chunked_all_gather.h"
#include "shardwise/comm/chunked_reduce_scatter.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/device_sum.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"
#include "shardwise/comm/operation_tag.h"
#include "shardwise/comm/reduce.h"

namespace shardwise::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor rows_of(const at::Tensor& x, const base::Range& range) {
  return x.narrow(0, range.begin, range.size());
}

/// Writes the sum of `partials`, in rank order, into `out`; each is contiguous and as large as `out`.
void sum_into(at::Tensor& out, const std::vector<at::Tensor>& partials) {
  if (!out.is_cpu()) return sum_on_device(out, partials);
  std::vector<const void*> sources;
  for (const at::Tensor& partial : partials) sources.push_back(partial.const_data_ptr());
  void* target = out.mutable_data_ptr();
  shm::reduce_kernel(out.scalar_type(), Reduce::sum)(sources.data(), int(sources.size()), &target,
                                                     /*copies=*/1, out.numel());
}

/// The arguments and the operation number of a ChunkedReduceScatter.
struct PartialSum {
  at::Tensor x;
  base::Split split;
  int rank;
  uint64_t number;  // of the group's asynchronous operations
  std::shared_ptr<Counters> counters;

  int ranks() const { return split.ranks(); }
  at::Tensor rows(int owner) const { return rows_of(x, split.range(owner)); }
  at::Tensor local_rows_of(const at::Tensor& full) const { return rows_of(full, split.range(rank)); }
};

/// Reads the peers' partial sums in the symmetric heap. This rank's rows come last, so that the peers' parts
/// of them are ready by then.
class SharedReduceScatter final : public ChunkedReduceScatter {
 public:
  SharedReduceScatter(PartialSum sum, std::shared_ptr<SymmetricHeap> symmetric)
      : sum_(std::move(sum)),
        symmetric_(std::move(symmetric)),
        full_split_(base::Split::even("partial sums", sum_.split.size() * sum_.ranks(), sum_.ranks())) {}

  int chunk_order(int i) const override { return (sum_.rank + 1 + i) % sum_.ranks(); }

  void chunk_ready(int i) override {
    const Timed timed(*sum_.counters, symmetric_.get());
    if (chunk_order(i) != sum_.rank)
      chunks_.push_back(
          symmetric_->share_shard(sum_.x, full_split_, operation_tag(sum_.number, uint64_t(i))));
  }

  void wait(at::Tensor& out) override {
    const Timed timed(*sum_.counters, symmetric_.get());
    std::vector<at::Tensor> partials;
    for (int peer = 0; peer < sum_.ranks(); ++peer) partials.push_back(sum_.local_rows_of(tensor_of(peer)));
    sum_into(out, partials);
    chunks_.clear();
    sum_.x.reset();
  }

 private:
  /// Returns the tensor of `peer` once it has written at least this rank's rows.
  at::Tensor tensor_of(int peer) const {
    if (peer == sum_.rank) return sum_.x;
    const int chunk =
        (sum_.rank - peer - 1 + sum_.ranks()) % sum_.ranks();  // the peer's chunk_order(chunk) is this rank
    return chunks_[size_t(chunk)]->get(peer);
  }

  PartialSum sum_;
  std::shared_ptr<SymmetricHeap> symmetric_;
  base::Split full_split_;  // every rank's "shard" is its full tensor
  std::vector<std::shared_ptr<PeerShards>> chunks_;
};

/// Gathers each rank's rows at their owner, which sums them in rank order; c10d's sums have an unspecified
/// order.
class GatherReduceScatter final : public ChunkedReduceScatter {
 public:
  GatherReduceScatter(PartialSum sum, c10::intrusive_ptr<c10d::Backend> backend)
      : sum_(std::move(sum)), backend_(std::move(backend)) {}

  int chunk_order(int i) const override { return i; }

  void chunk_ready(int i) override {
    const Timed timed(*sum_.counters, nullptr);
    const c10::NoGradGuard no_grad;
    if (sum_.split.range(i).empty()) return;
    std::vector<at::Tensor> inputs = {sum_.rows(i)};
    std::vector<std::vector<at::Tensor>> outputs;
    if (i == sum_.rank) {
      for (int peer = 0; peer < sum_.ranks(); ++peer) partials_.push_back(at::empty_like(inputs[0]));
      outputs.push_back(partials_);
    }
    works_.push_back(backend_->gather(outputs, inputs, {.rootRank = i}));
  }

  void wait(at::Tensor& out) override {
    const Timed timed(*sum_.counters, nullptr);
    for (const WorkPtr& work : works_) work->wait();
    if (!partials_.empty()) sum_into(out, partials_);
    works_.clear();
    sum_.x.reset();
  }

 private:
  PartialSum sum_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<at::Tensor> partials_;
  std::vector<WorkPtr> works_;
};

/// Runs one c10d reduce_scatter in `wait`, for a synchronous backend.
class SynchronousReduceScatter final : public ChunkedReduceScatter {
 public:
  SynchronousReduceScatter(PartialSum sum, c10::intrusive_ptr<c10d::Backend> backend)
      : sum_(std::move(sum)), backend_(std::move(backend)) {}

  int chunk_order(int i) const override { return i; }
  void chunk_ready(int) override {}
  void wait(at::Tensor& out) override {
    const Timed timed(*sum_.counters, nullptr);
    const c10::NoGradGuard no_grad;
    c10d_reduce_scatter(*backend_, out, sum_.x, sum_.split, /*dim=*/0);
    sum_.x.reset();
  }

 private:
  PartialSum sum_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

/// Broadcasts each rank's rows by a separate c10d call.
class BroadcastAllGather final : public ChunkedAllGather {
 public:
  BroadcastAllGather(at::Tensor output, int rank, std::shared_ptr<Counters> counters)
      : output_(std::move(output)), rank_(rank), counters_(std::move(counters)) {}

  void start(const base::Split& split, c10d::Backend& backend) {
    for (int root = 0; root < split.ranks(); ++root) {
      std::vector<at::Tensor> rows = {rows_of(output_, split.range(root))};
      works_.push_back(split.range(root).empty() ? WorkPtr() : backend.broadcast(rows, {.rootRank = root}));
    }
  }
  const at::Tensor& output() const override { return output_; }
  /// This rank's rows are present from the start; the last call also waits until they have been sent.
  void wait_chunk(int rank) override {
    if (rank != rank_) wait(rank);
    int left = 0;
    for (int peer = 0; peer < int(works_.size()); ++peer) left += peer != rank_ && works_[size_t(peer)];
    if (left == 0) wait(rank_);
  }

 private:
  void wait(int rank) {
    if (works_.empty() || !works_[size_t(rank)]) return;
    const Timed timed(*counters_, nullptr);
    std::exchange(works_[size_t(rank)], nullptr)->wait();
  }

  at::Tensor output_;
  int rank_;
  std::shared_ptr<Counters> counters_;
  std::vector<WorkPtr> works_;  // by rank; null once waited for
};

}  // namespace

std::unique_ptr<ChunkedReduceScatter> Group::reduce_scatter_chunked(const at::Tensor& x,
                                                                    const base::Split& split) const {
  check_full("reduce_scatter_chunked", x, split, /*dim=*/0, size());
  SymmetricHeap* symmetric = state_->symmetric_heap();
  TORCH_CHECK_VALUE(size() > 1, "reduce_scatter_chunked: needs two ranks or more; got 1");
  check_async_input("reduce_scatter_chunked", x, device(), symmetric);
  const Counted counted(*state_->counters, state_->heap.get(), Op::reduce_scatter,
                        reduce_scatter_bytes(x, split, rank()));
  PartialSum sum{x, split, rank(), ++*state_->async_operations, state_->counters};
  if (symmetric) return std::make_unique<SharedReduceScatter>(std::move(sum), state_->heap);
  if (is_synchronous()) return std::make_unique<SynchronousReduceScatter>(std::move(sum), state_->backend);
  return std::make_unique<GatherReduceScatter>(std::move(sum), state_->backend);
}

std::shared_ptr<ChunkedAllGather> Group::all_gather_chunked(const at::Tensor& shard,
                                                            const base::Split& split) const {
  check_shard("all_gather_chunked", shard, split, /*dim=*/0, rank(), size());
  if (size() == 1) return std::make_shared<BroadcastAllGather>(shard, rank(), state_->counters);
  const Counted counted(*state_->counters, state_->heap.get(), Op::all_gather,
                        int64_t(shard.nbytes()) * (size() - 1));
  at::Tensor output = empty_with_size(shard, /*dim=*/0, split.size());
  auto rows = std::make_shared<BroadcastAllGather>(output, rank(), state_->counters);
  if (is_synchronous()) {
    c10d_all_gather(*state_->backend, output, shard, split, /*dim=*/0);
    return rows;
  }
  rows_of(output, split.range(rank())).copy_(shard);
  rows->start(split, *state_->backend);
  return rows;
}

}  // namespace shardwise::comm

// Group's asynchronous all_reduce and chunked collectives. With a symmetric heap a chunk is a share_shard of
// the full tensor, which marks how much of it the rank has written; otherwise it is a collective that the
// backend has started.
#include <ATen/ops/empty_like.h>

#include <utility>

#include "shardwise/comm/argument_checks.h"
#include "shardwise/comm/descriptor.h"
#include "shardwise/comm/group_call.h"
#include "shardwise/comm/reduce.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm {
namespace {

at::Tensor rows_of(const at::Tensor& x, const base::Range& range) {
  return x.narrow(0, range.begin, range.size());
}

/// Writes the sum of `partials`, in rank order, into `out`; each is contiguous and as large as `out`.
void sum_into(at::Tensor& out, const std::vector<at::Tensor>& partials) {
  if (!out.is_cpu()) return sum_on_device(out, partials);
  std::vector<const void*> sources;
  for (const at::Tensor& partial : partials) sources.push_back(partial.const_data_ptr());
  void* target = out.mutable_data_ptr();
  reduce_kernel(out.scalar_type(), Reduce::sum)(sources.data(), int(sources.size()), &target,
                                                /*copies=*/1, out.numel());
}

/// What an operation in flight needs of its group.
struct OwningGroup {
  std::shared_ptr<CollectiveBackend> backend;
  std::shared_ptr<Counters> counters;
};

/// Returns a Work that counts the time of `work`'s wait, and the bytes copied in it as those of `op`.
std::unique_ptr<Work> counted(std::unique_ptr<Work> work, Op op, OwningGroup group) {
  return std::make_unique<CallWork>(
      [work = std::shared_ptr<Work>(std::move(work)), op, group = std::move(group)] {
        const Counted scope(*group.counters, *group.backend, op);
        abort_if_failing(*group.backend, [&] { work->wait(); });
      });
}

/// The arguments and the operation number of a ChunkedReduceScatter.
struct PartialSum {
  at::Tensor x;
  base::Split split;
  int rank;
  uint64_t number;  // of the group's asynchronous operations
  OwningGroup group;

  int ranks() const { return split.ranks(); }
  at::Tensor rows(int owner) const { return rows_of(x, split.range(owner)); }
  at::Tensor local_rows_of(const at::Tensor& full) const { return rows_of(full, split.range(rank)); }
  /// Runs a part of the operation; aborts the group if it fails on this rank alone.
  template <class Body>
  void run(const Body& body) const {
    const Timed timed(*group.counters, *group.backend, Op::reduce_scatter);
    abort_if_failing(*group.backend, body);
  }
};

/// What the kinds of ChunkedReduceScatter have in common: they check each call before they run it.
class CheckedReduceScatter : public ChunkedReduceScatter {
 public:
  void chunk_ready(int i) final {
    TORCH_CHECK_VALUE(i == ready_ && i < sum_.ranks(), kOp,
                      ": chunks must be reported once each, in ascending order; got chunk ", i, " after ",
                      ready_, " of ", sum_.ranks(), " [SW0657]");
    start_chunk(i);
    ++ready_;
  }

  void wait(at::Tensor& out) final {
    TORCH_CHECK_VALUE(sum_.x.defined() && ready_ == sum_.ranks(), kOp,
                      ": needs one wait, after all chunks; got ",
                      sum_.x.defined() ? "a wait after " : "another wait after ", ready_, " of ",
                      sum_.ranks(), " chunks [SW0658]");
    check_shard(kOp, out, sum_.split, /*dim=*/0, sum_.rank, sum_.ranks());
    check_output(kOp, out, sum_.x);
    check_dense_on(kOp, out, sum_.x.device());
    TORCH_CHECK_VALUE(out.is_contiguous(), kOp, ": the output must be contiguous; got strides ",
                      out.strides(), " of ", out.sizes(), " [SW0659]");
    finish(out);
    sum_.x.reset();
  }

 protected:
  explicit CheckedReduceScatter(PartialSum sum) : sum_(std::move(sum)) {}

  virtual void start_chunk(int i) = 0;
  /// Sums all chunks into `out`.
  virtual void finish(at::Tensor& out) = 0;

  PartialSum sum_;

 private:
  static constexpr const char* kOp = "reduce_scatter_chunked";

  int ready_ = 0;  // chunks so far
};

/// Reads the peers' partial sums in the symmetric heap. This rank's rows come last, so that the peers' parts
/// of them are ready by then.
class SharedReduceScatter final : public CheckedReduceScatter {
 public:
  SharedReduceScatter(PartialSum sum, SymmetricHeap& heap)
      : CheckedReduceScatter(std::move(sum)),
        heap_(heap),
        full_split_(base::Split::even("partial sums", sum_.split.size() * sum_.ranks(), sum_.ranks())) {}

  int chunk_order(int i) const override { return (sum_.rank + 1 + i) % sum_.ranks(); }

 private:
  void start_chunk(int i) override {
    sum_.run([&] {
      if (chunk_order(i) != sum_.rank)
        chunks_.push_back(heap_.share_shard(sum_.x, full_split_, operation_tag(sum_.number, uint64_t(i)),
                                            Op::reduce_scatter));
    });
  }

  void finish(at::Tensor& out) override {
    sum_.run([&] {
      std::vector<at::Tensor> partials;
      for (int peer = 0; peer < sum_.ranks(); ++peer) partials.push_back(sum_.local_rows_of(tensor_of(peer)));
      sum_into(out, partials);
    });
    chunks_.clear();
  }

  /// Returns the tensor of `peer` once it has written at least this rank's rows.
  at::Tensor tensor_of(int peer) const {
    if (peer == sum_.rank) return sum_.x;
    const int chunk =
        (sum_.rank - peer - 1 + sum_.ranks()) % sum_.ranks();  // the peer's chunk_order(chunk) is this rank
    return chunks_[size_t(chunk)]->get(peer);
  }

  SymmetricHeap& heap_;     // of the backend that `sum_` keeps
  base::Split full_split_;  // every rank's "shard" is its full tensor
  std::vector<std::shared_ptr<PeerShards>> chunks_;
};

/// Gathers each rank's rows at their owner, which sums them in rank order; an asynchronous backend's sums
/// have an unspecified order.
class GatherReduceScatter final : public CheckedReduceScatter {
 public:
  explicit GatherReduceScatter(PartialSum sum) : CheckedReduceScatter(std::move(sum)) {}

  int chunk_order(int i) const override { return i; }

 private:
  void start_chunk(int i) override {
    if (!sum_.split.range(i).empty()) sum_.run([&] { start_gather(i); });
  }

  void finish(at::Tensor& out) override {
    sum_.run([&] {
      for (const std::unique_ptr<Work>& work : works_) work->wait();
      if (!partials_.empty()) sum_into(out, partials_);
    });
    works_.clear();
  }

  void start_gather(int owner) {
    const c10::NoGradGuard no_grad;
    const at::Tensor rows = sum_.rows(owner);
    const bool is_owner = owner == sum_.rank;
    for (int peer = 0; is_owner && peer < sum_.ranks(); ++peer) partials_.push_back(at::empty_like(rows));
    const std::vector<at::Tensor> none;
    works_.push_back(sum_.group.backend->start_gather(is_owner ? partials_ : none, rows, owner));
  }

  std::vector<at::Tensor> partials_;
  std::vector<std::unique_ptr<Work>> works_;
};

/// Runs one reduce_scatter in `wait`, for a synchronous backend without a symmetric heap.
class SynchronousReduceScatter final : public CheckedReduceScatter {
 public:
  explicit SynchronousReduceScatter(PartialSum sum) : CheckedReduceScatter(std::move(sum)) {}

  int chunk_order(int i) const override { return i; }

 private:
  void start_chunk(int) override {}
  void finish(at::Tensor& out) override {
    sum_.run([&] {
      const c10::NoGradGuard no_grad;
      CollectiveBackend& backend = *sum_.group.backend;
      if (sum_.split.is_uniform()) {
        backend.reduce_scatter_even(out, sum_.x, Reduce::sum);
      } else {
        backend.reduce_scatter(out, pieces_of(sum_.x, sum_.split, /*dim=*/0), Reduce::sum);
      }
    });
  }
};

}  // namespace

void ChunkedAllGather::wait_chunk(int rank) {
  check_rank(rank, int(chunks_.size()), "ChunkedAllGather::wait_chunk");
  if (rank != rank_) complete(rank);
  int left = 0;
  for (int peer = 0; peer < int(chunks_.size()); ++peer) left += peer != rank_ && chunks_[size_t(peer)];
  if (left == 0) complete(rank_);
}

void ChunkedAllGather::complete(int rank) {
  if (!chunks_[size_t(rank)]) return;
  chunks_[size_t(rank)]->wait();
  chunks_[size_t(rank)].reset();
}

std::unique_ptr<Work> Group::all_reduce_async_(const at::Tensor& x) const {
  if (size() == 1) return std::make_unique<CallWork>(nullptr);
  check_async_input("all_reduce_async_", x, device(), state_->heap);
  return state_->call(Op::all_reduce, all_reduce_bytes(x, rank(), size()), [&] {
    std::unique_ptr<Work> work = state_->heap != nullptr
                                     ? state_->heap->all_reduce_async_(x, ++*state_->async_operations)
                                     : state_->backend->start_all_reduce_(x);
    return counted(std::move(work), Op::all_reduce, {state_->backend, state_->counters});
  });
}

std::unique_ptr<ChunkedReduceScatter> Group::reduce_scatter_chunked(const at::Tensor& x,
                                                                    const base::Split& split) const {
  check_full("reduce_scatter_chunked", x, split, /*dim=*/0, size());
  TORCH_CHECK_VALUE(size() > 1, "reduce_scatter_chunked: needs two ranks or more; got 1 [SW0490]");
  check_async_input("reduce_scatter_chunked", x, device(), state_->heap);
  const Counted scope(*state_->counters, *state_->backend, Op::reduce_scatter,
                      reduce_scatter_bytes(x, split, /*dim=*/0, rank()));
  PartialSum sum{x, split, rank(), ++*state_->async_operations, {state_->backend, state_->counters}};
  if (state_->heap != nullptr) return std::make_unique<SharedReduceScatter>(std::move(sum), *state_->heap);
  if (is_synchronous()) return std::make_unique<SynchronousReduceScatter>(std::move(sum));
  return std::make_unique<GatherReduceScatter>(std::move(sum));
}

std::shared_ptr<ChunkedAllGather> Group::all_gather_chunked(const at::Tensor& shard,
                                                            const base::Split& split) const {
  check_shard("all_gather_chunked", shard, split, /*dim=*/0, rank(), size());
  ChunkedAllGather::Works chunks(static_cast<size_t>(size()));  // all complete
  if (size() == 1) return std::make_shared<ChunkedAllGather>(shard, rank(), std::move(chunks));
  check_dense_on("all_gather_chunked", shard, device());
  if (is_synchronous()) {
    return std::make_shared<ChunkedAllGather>(without_symmetric_heap().all_gather(shard, split), rank(),
                                              std::move(chunks));
  }
  const at::Tensor output = empty_with_size(shard, /*dim=*/0, split.size());
  return std::make_shared<ChunkedAllGather>(output, rank(), start_chunks(output, shard, split));
}

ChunkedAllGather::Works Group::start_chunks(const at::Tensor& output, const at::Tensor& shard,
                                            const base::Split& split) const {
  return state_->call(Op::all_gather, int64_t(shard.nbytes()) * (size() - 1), [&] {
    ChunkedAllGather::Works chunks(static_cast<size_t>(size()));
    rows_of(output, split.range(rank())).copy_(shard);
    for (int root = 0; root < split.ranks(); ++root) {
      if (split.range(root).empty()) continue;
      auto chunk = state_->backend->start_broadcast_(rows_of(output, split.range(root)), root);
      chunks[size_t(root)] = counted(std::move(chunk), Op::all_gather, {state_->backend, state_->counters});
    }
    return chunks;
  });
}

std::unique_ptr<Work> Group::all_gather_out_async(const at::Tensor& out, const at::Tensor& shard,
                                                  const base::Split& split) const {
  check_full("all_gather", out, split, /*dim=*/0, size());
  check_shard("all_gather", shard, split, /*dim=*/0, rank(), size());
  check_output("all_gather", rows_of(out, split.range(rank())), shard);
  check_dense_on("all_gather", shard, device());
  check_dense_on("all_gather", out, device());
  if (size() == 1 || is_synchronous())
    return std::make_unique<CallWork>([group = *this, out = at::Tensor(out), shard, split]() mutable {
      group.all_gather_out(out, shard, split);
    });
  return std::make_unique<CallWork>(
      [chunks = std::make_shared<ChunkedAllGather::Works>(start_chunks(out, shard, split))] {
        for (const std::unique_ptr<Work>& chunk : *chunks)
          if (chunk) chunk->wait();
      });
}

}  // namespace shardwise::comm

// Group's construction, symmetric heap and abort. Its collectives are in group_collectives.cpp.
#include "shardwise/comm/group.h"

#include <ATen/ops/empty.h>

#include "shardwise/base/split.h"
#include "shardwise/comm/argument_checks.h"
#include "shardwise/comm/group_call.h"

namespace shardwise::comm {
namespace {

constexpr const char* kGet = "PeerShards::get";

/// The PeerShards of a group of one.
class SingleShard final : public PeerShards {
 public:
  explicit SingleShard(at::Tensor shard) : shard_(std::move(shard)) {}
  at::Tensor get(int rank) override {
    check_rank(rank, /*size=*/1, kGet);
    return shard_;
  }

 private:
  at::Tensor shard_;
};

/// PeerShards that count the time of `get`, which waits for peers.
class CountedPeerShards final : public PeerShards {
 public:
  CountedPeerShards(std::shared_ptr<PeerShards> shards, std::shared_ptr<Counters> counters,
                    std::shared_ptr<CollectiveBackend> backend)
      : shards_(std::move(shards)), counters_(std::move(counters)), backend_(std::move(backend)) {}
  at::Tensor get(int rank) override {
    check_rank(rank, backend_->size(), kGet);
    const Timed timed(*counters_, *backend_, Op::share_shard);
    return abort_if_failing(*backend_, [&] { return shards_->get(rank); });
  }

 private:
  std::shared_ptr<PeerShards> shards_;
  std::shared_ptr<Counters> counters_;
  std::shared_ptr<CollectiveBackend> backend_;
};

}  // namespace

Group::Group() : state_(std::make_shared<State>()) {}

Group::Group(at::Device device) : Group() {
  state_->device = device;
}

Group::Group(std::shared_ptr<CollectiveBackend> backend) : state_(std::make_shared<State>()) {
  state_->device = backend->device();
  state_->rank = backend->rank();
  state_->size = backend->size();
  state_->heap = backend->symmetric_heap();
  state_->backend = std::move(backend);
}

Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

int Group::rank() const {
  return state_->rank;
}

int Group::size() const {
  return state_->size;
}

Group Group::without_symmetric_heap() const {
  auto state = std::make_shared<State>(*state_);
  state->heap = nullptr;
  return Group(std::move(state));
}

Group Group::with_new_counters() const {
  auto state = std::make_shared<State>(*state_);
  state->counters = std::make_shared<Counters>();
  return Group(std::move(state));
}

bool Group::has_symmetric_heap() const {
  return state_->heap != nullptr;
}

std::vector<int> Group::nodes() const {
  if (size() == 1) return {0};
  return state_->backend->nodes();
}

SymmetricHeap* Group::symmetric_heap() const {
  return state_->heap;
}

CollectiveBackend* Group::backend() const {
  return state_->backend.get();
}

const Counters& Group::counters() const {
  return *state_->counters;
}

at::Device Group::device() const {
  return state_->device;
}

bool Group::is_synchronous() const {
  return size() == 1 || state_->backend->is_synchronous();
}

at::Tensor Group::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  if (state_->heap != nullptr) return state_->heap->empty(sizes, dtype);
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device()));
}

std::shared_ptr<PeerShards> Group::share_shard(const at::Tensor& shard, const base::Split& split) const {
  check_shard("share_shard", shard, split, /*dim=*/0, rank(), size());
  if (size() == 1) return std::make_shared<SingleShard>(shard);
  SymmetricHeap* const heap = state_->heap;
  TORCH_CHECK_VALUE(heap != nullptr, "share_shard: needs a group with a symmetric heap; got one of ", size(),
                    " ranks without it; call all_gather instead [SW0489]");
  check_dense_on("share_shard", shard, device());
  return state_->call(Op::all_gather, int64_t(shard.nbytes()) * (size() - 1), [&] {
    at::Tensor readable = shard;
    if (!shard.is_contiguous() || !heap->contains(shard)) {
      readable = heap->empty(shard.sizes(), shard.scalar_type());
      readable.copy_(shard);
      (*state_->counters)[Op::all_gather].copied_bytes += int64_t(shard.nbytes());
    }
    return std::make_shared<CountedPeerShards>(heap->share_shard(readable, split, /*tag=*/0, Op::share_shard),
                                               state_->counters, state_->backend);
  });
}

at::Tensor Group::empty_shared(at::IntArrayRef sizes, at::ScalarType dtype) const {
  if (size() == 1) return empty(sizes, dtype);
  SymmetricHeap* const heap = state_->heap;
  TORCH_CHECK_VALUE(heap != nullptr, "empty_shared: needs a group with a symmetric heap; got one of ", size(),
                    " ranks without it [SW0866]");
  std::vector<int64_t> elements(size_t(size()), 0);
  elements[0] = c10::multiply_integers(sizes);
  const auto split = base::Split::of_sizes("shared tensor", elements);
  return state_->call(Op::barrier, /*sent_bytes=*/0, [&] {
    const at::Tensor own = heap->empty({elements[size_t(rank())]}, dtype);
    return heap->share_shard(own, split, /*tag=*/0, Op::share_shard)->get(0).view(sizes);
  });
}

void Group::record_peer_read(const at::Tensor& shard) const {
  if (size() == 1) return;
  OpCount& count = (*state_->counters)[Op::all_gather];
  count.calls += 1;
  count.bytes += int64_t(shard.nbytes()) * (size() - 1);
}

void Group::abort(const std::string& reason) const {
  if (state_->backend) state_->backend->abort(reason);
}

}  // namespace shardwise::comm

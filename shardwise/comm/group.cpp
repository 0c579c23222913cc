// Group's construction, symmetric heap and abort. Its collectives are in group_collectives.cpp.
#include "shardwise/comm/group.h"

#include <ATen/ops/empty.h>

#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/checks.h"
#include "shardwise/comm/counted.h"
#include "shardwise/comm/group_calls.h"
#include "shardwise/comm/group_state.h"

namespace shardwise::comm {
namespace {

/// The PeerShards of a group of one.
class SingleShard final : public PeerShards {
 public:
  explicit SingleShard(at::Tensor shard) : shard_(std::move(shard)) {}
  at::Tensor get(int) override { return shard_; }

 private:
  at::Tensor shard_;
};

}  // namespace

Group::Group() : state_(std::make_shared<State>()) {}

Group::Group(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<SymmetricHeap> symmetric)
    : state_(std::make_shared<State>()) {
  state_->use_heap = symmetric != nullptr;
  state_->heap = std::move(symmetric);
  state_->backend = std::move(backend);
}

Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}

int Group::rank() const {
  return state_->backend ? state_->backend->getRank() : 0;
}

int Group::size() const {
  return state_->backend ? state_->backend->getSize() : 1;
}

Group Group::without_symmetric_heap() const {
  auto state = std::make_shared<State>(*state_);
  state->use_heap = false;
  return Group(std::move(state));
}

Group Group::with_new_counters() const {
  auto state = std::make_shared<State>(*state_);
  state->counters = std::make_shared<Counters>();
  return Group(std::move(state));
}

bool Group::has_symmetric_heap() const {
  return state_->use_heap;
}

SymmetricHeap* Group::symmetric_heap() const {
  return state_->symmetric_heap();
}

const Counters& Group::counters() const {
  return *state_->counters;
}

at::Device Group::device() const {
  const std::optional<at::Device> bound =
      state_->backend ? state_->backend->getBoundDeviceId() : std::nullopt;
  return bound.value_or(at::kCPU);
}

bool Group::is_synchronous() const {
  return size() == 1 || comm::is_synchronous(*state_->backend);
}

at::Tensor Group::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  if (SymmetricHeap* symmetric = state_->symmetric_heap()) return symmetric->empty(sizes, dtype);
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device()));
}

std::shared_ptr<PeerShards> Group::share_shard(const at::Tensor& shard, const base::Split& split) const {
  check_shard("share_shard", shard, split, /*dim=*/0, rank(), size());
  if (size() == 1) return std::make_shared<SingleShard>(shard);
  SymmetricHeap* symmetric = state_->symmetric_heap();
  TORCH_CHECK_VALUE(symmetric != nullptr,
                    "share_shard: needs a group with a symmetric heap; call all_gather instead");
  const Counted counted(*state_->counters, symmetric, Op::all_gather, int64_t(shard.nbytes()) * (size() - 1));
  at::Tensor readable = shard;
  if (!shard.is_contiguous() || !symmetric->contains(shard)) {
    readable = symmetric->empty(shard.sizes(), shard.scalar_type());
    readable.copy_(shard);
    (*state_->counters)[Op::all_gather].copied_bytes += int64_t(shard.nbytes());
  }
  return std::make_shared<CountedPeerShards>(symmetric->share_shard(readable, split, /*tag=*/0),
                                             state_->counters, state_->heap);
}

void Group::record_peer_read(const at::Tensor& shard) const {
  if (size() == 1) return;
  OpCount& count = (*state_->counters)[Op::all_gather];
  count.calls += 1;
  count.bytes += int64_t(shard.nbytes()) * (size() - 1);
}

void Group::abort(const std::string& reason) const {
  if (auto* const ours = dynamic_cast<C10dBackend*>(state_->backend.get())) {
    ours->abort(reason);
  } else if (state_->backend) {
    state_->backend->abort();
  }
}

}  // namespace shardwise::comm

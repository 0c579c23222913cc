// A CollectiveBackend over any c10d::Backend, such as NCCL's, and the Group that has it: the reverse of
// c10d_backend.h.
#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shardwise/comm/c10d_types.h"
#include "shardwise/comm/collective_backend.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/group_guard.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm {
namespace {

using Tensors = CollectiveBackend::Tensors;

/// The guard of a group whose backend has none. Its timeouts are the backend's own.
class BackendGuard final : public GroupGuard {
 public:
  explicit BackendGuard(int rank) : GroupGuard(rank, std::chrono::milliseconds(0)) {}
};

/// The collectives of a c10d::Backend. They progress asynchronously, and the backend chooses the order of
/// sums. Tensors that are not contiguous are copied, because NCCL accepts no others. Errors: the backend's.
class C10dCollectives final : public CollectiveBackend {
 public:
  explicit C10dCollectives(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)), guard_(backend_->getRank()) {}

  std::string backend_name() const override { return backend_->getBackendName(); }
  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  /// Returns the device that the backend is bound to, else the CPU.
  at::Device device() const override { return backend_->getBoundDeviceId().value_or(at::kCPU); }
  bool is_synchronous() const override { return false; }
  GroupGuard* guard() override { return &guard_; }
  uint64_t sequence() const override { return backend_->getSequenceNumberForGroup(); }
  std::chrono::milliseconds timeout() const override { return backend_->getBackendOptions()->timeout; }
  void set_timeout(std::chrono::milliseconds timeout) override { backend_->setTimeout(timeout); }
  void limit_collectives(std::chrono::milliseconds limit) override { limit_ = limit; }

  void broadcast_(at::Tensor& x, int root) override;
  void all_reduce_(at::Tensor& x, Reduce reduce) override;
  void all_gather(Tensors& pieces, const at::Tensor& shard) override;
  void all_gather_even(at::Tensor& out, const at::Tensor& shard) override;
  void reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) override;
  void reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) override;
  void barrier() override;
  void scatter(at::Tensor& out, const Tensors& pieces, int root) override;
  void gather(Tensors& pieces, const at::Tensor& shard, int root) override;
  void all_to_all(Tensors& outs, const Tensors& pieces) override;
  void all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows, const at::Tensor& x,
                       const std::vector<int64_t>& x_rows) override;
  std::unique_ptr<Work> start_all_reduce_(const at::Tensor& x) override;
  std::unique_ptr<Work> start_broadcast_(const at::Tensor& x, int root) override;
  std::unique_ptr<Work> start_gather(const Tensors& pieces, const at::Tensor& shard, int root) override;
  void send(const at::Tensor& x, int to, int tag) override;
  std::unique_ptr<PendingReceive> receive(const at::Tensor& x, int from, int tag) override;
  /// Aborts this rank's part; c10d has no place for the reason.
  void abort(const std::string& /*reason*/) override { backend_->abort(); }
  void leave() override { backend_->shutdown(); }

 private:
  /// Returns `options` with the limit of collectives, if there is one.
  template <class Options>
  Options limited(Options options) const {
    if (limit_.count() > 0) options.timeout = limit_;
    return options;
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  BackendGuard guard_;
  std::chrono::milliseconds limit_{0};
};

class C10dReceive final : public PendingReceive {
 public:
  explicit C10dReceive(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool poll() override {
    if (!work_->isCompleted()) return false;
    wait();  // does not wait: throws if the receive failed
    return true;
  }
  void wait(std::optional<std::chrono::milliseconds> limit = std::nullopt) override {
    work_->wait(limit.value_or(kNoTimeout));
  }
  int sender() const override { return work_->isSuccess() ? work_->sourceRank() : -1; }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

/// Returns a Work that waits for `call` and retains its tensors.
std::unique_ptr<Work> work_of(c10::intrusive_ptr<c10d::Work> call, Tensors tensors) {
  return std::make_unique<CallWork>([call = std::move(call), tensors = std::move(tensors)] { call->wait(); });
}

c10d::AllreduceOptions all_reduce_options(Reduce reduce) {
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(reduce);
  return options;
}

c10d::ReduceScatterOptions reduce_scatter_options(Reduce reduce) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = to_c10d(reduce);
  return options;
}

/// c10d takes no lists for equal parts.
std::vector<int64_t> splits_of(const std::vector<int64_t>& rows) {
  const bool is_even = std::ranges::adjacent_find(rows, std::not_equal_to<>()) == rows.end();
  return is_even ? std::vector<int64_t>() : rows;
}

void C10dCollectives::broadcast_(at::Tensor& x, int root) {
  Tensors tensors = {x.contiguous()};
  backend_->broadcast(tensors, limited(c10d::BroadcastOptions{.rootRank = root}))->wait();
  copy_back({x}, tensors);
}

void C10dCollectives::all_reduce_(at::Tensor& x, Reduce reduce) {
  Tensors tensors = {x.contiguous()};
  backend_->allreduce(tensors, limited(all_reduce_options(reduce)))->wait();
  copy_back({x}, tensors);
}

void C10dCollectives::all_gather(Tensors& pieces, const at::Tensor& shard) {
  std::vector<Tensors> outputs = {dense_like(pieces)};
  Tensors inputs = {shard.contiguous()};
  backend_->allgather(outputs, inputs, limited(c10d::AllgatherOptions()))->wait();
  copy_back(pieces, outputs[0]);
}

void C10dCollectives::all_gather_even(at::Tensor& out, const at::Tensor& shard) {
  at::Tensor input = shard.contiguous();
  backend_->_allgather_base(out, input, limited(c10d::AllgatherOptions()))->wait();
}

void C10dCollectives::reduce_scatter(at::Tensor& out, const Tensors& pieces, Reduce reduce) {
  Tensors outputs = {dense_like(out)};
  std::vector<Tensors> inputs = {contiguous(pieces)};
  backend_->reduce_scatter(outputs, inputs, limited(reduce_scatter_options(reduce)))->wait();
  copy_back({out}, outputs);
}

void C10dCollectives::reduce_scatter_even(at::Tensor& out, const at::Tensor& x, Reduce reduce) {
  Tensors outputs = {dense_like(out)};
  at::Tensor input = x.contiguous();
  backend_->_reduce_scatter_base(outputs[0], input, limited(reduce_scatter_options(reduce)))->wait();
  copy_back({out}, outputs);
}

void C10dCollectives::barrier() {
  backend_->barrier(limited(c10d::BarrierOptions()))->wait();
}

void C10dCollectives::scatter(at::Tensor& out, const Tensors& pieces, int root) {
  Tensors outputs = {dense_like(out)};
  std::vector<Tensors> inputs;
  if (rank() == root) inputs.push_back(contiguous(pieces));
  backend_->scatter(outputs, inputs, limited(c10d::ScatterOptions{.rootRank = root}))->wait();
  copy_back({out}, outputs);
}

void C10dCollectives::gather(Tensors& pieces, const at::Tensor& shard, int root) {
  Tensors inputs = {shard.contiguous()};
  std::vector<Tensors> outputs;
  if (rank() == root) outputs.push_back(dense_like(pieces));
  backend_->gather(outputs, inputs, limited(c10d::GatherOptions{.rootRank = root}))->wait();
  if (rank() == root) copy_back(pieces, outputs[0]);
}

void C10dCollectives::all_to_all(Tensors& outs, const Tensors& pieces) {
  Tensors outputs = dense_like(outs), inputs = contiguous(pieces);
  backend_->alltoall(outputs, inputs, limited(c10d::AllToAllOptions()))->wait();
  copy_back(outs, outputs);
}

void C10dCollectives::all_to_all_rows(at::Tensor& out, const std::vector<int64_t>& out_rows,
                                      const at::Tensor& x, const std::vector<int64_t>& x_rows) {
  Tensors outputs = {dense_like(out)};
  at::Tensor input = x.contiguous();
  std::vector<int64_t> out_splits = splits_of(out_rows), x_splits = splits_of(x_rows);
  backend_->alltoall_base(outputs[0], input, out_splits, x_splits, limited(c10d::AllToAllOptions()))->wait();
  copy_back({out}, outputs);
}

std::unique_ptr<Work> C10dCollectives::start_all_reduce_(const at::Tensor& x) {
  Tensors tensors = {x};
  auto call = backend_->allreduce(tensors, limited(all_reduce_options(Reduce::sum)));
  return work_of(std::move(call), std::move(tensors));
}

std::unique_ptr<Work> C10dCollectives::start_broadcast_(const at::Tensor& x, int root) {
  Tensors tensors = {x};
  auto call = backend_->broadcast(tensors, limited(c10d::BroadcastOptions{.rootRank = root}));
  return work_of(std::move(call), std::move(tensors));
}

std::unique_ptr<Work> C10dCollectives::start_gather(const Tensors& pieces, const at::Tensor& shard,
                                                    int root) {
  Tensors tensors = pieces, inputs = {shard};
  std::vector<Tensors> outputs;
  if (rank() == root) outputs.push_back(pieces);
  auto call = backend_->gather(outputs, inputs, limited(c10d::GatherOptions{.rootRank = root}));
  tensors.push_back(shard);
  return work_of(std::move(call), std::move(tensors));
}

void C10dCollectives::send(const at::Tensor& x, int to, int tag) {
  Tensors tensors = {x};
  backend_->send(tensors, to, tag)->wait();
}

std::unique_ptr<PendingReceive> C10dCollectives::receive(const at::Tensor& x, int from, int tag) {
  Tensors tensors = {x};
  return std::make_unique<C10dReceive>(from == kAnySource ? backend_->recvAnysource(tensors, tag)
                                                          : backend_->recv(tensors, from, tag));
}

}  // namespace

Group::Group(const c10::intrusive_ptr<c10d::Backend>& backend)
    : Group(std::make_shared<C10dCollectives>(backend)) {}

}  // namespace shardwise::comm

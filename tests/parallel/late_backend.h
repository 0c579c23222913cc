// A backend that progresses asynchronously, like a network's: collectives complete late and in the order of
// their calls, so reading a result before waiting for it gives wrong values.
#pragma once
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/gather_values.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/transport.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {

class LateWork final : public c10d::Work {
 public:
  explicit LateWork(std::shared_future<void> done) : done_(std::move(done)) {}
  bool wait(std::chrono::milliseconds) override {
    done_.get();
    return true;
  }

 private:
  std::shared_future<void> done_;
};

class LateBackend final : public comm::C10dBackend {
 public:
  using comm::C10dBackend::C10dBackend;

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return later([this, tensors, options]() mutable { C10dBackend::allreduce(tensors, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return later([this, tensors, options]() mutable { C10dBackend::broadcast(tensors, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return later(
        [this, outputs, inputs, options]() mutable { C10dBackend::gather(outputs, inputs, options); });
  }

  // The others run when all earlier calls have, as on a stream.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    wait_for_earlier();
    return C10dBackend::_allgather_base(output, input, options);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    wait_for_earlier();
    return C10dBackend::allgather(outputs, inputs, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    wait_for_earlier();
    return C10dBackend::reduce_scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    wait_for_earlier();
    return C10dBackend::_reduce_scatter_base(output, input, options);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    wait_for_earlier();
    return C10dBackend::barrier(options);
  }

 private:
  void wait_for_earlier() const {
    if (last_.valid()) last_.wait();
  }

  WorkPtr later(std::function<void()> call) {
    last_ = std::async(std::launch::async, [before = last_, call = std::move(call)]() mutable {
              if (before.valid()) std::exchange(before, {}).wait();
              std::this_thread::sleep_for(std::chrono::milliseconds(2));
              std::exchange(call, nullptr)();  // a future keeps its function, and so this call's tensors
            }).share();
    return c10::make_intrusive<LateWork>(last_);
  }

  std::shared_future<void> last_;
};

inline comm::Group late_group(const std::string& job, int rank, int ranks) {
  const comm::shm::ConnectOptions shm_options = options(job, rank, ranks);
  return comm::Group(c10::make_intrusive<LateBackend>(
      std::make_shared<comm::shm::Transport>(comm::shm::rendezvous(shm_options), rank, shm_options.timeout)));
}

/// Returns a late group of the ranks of `group`. Collective.
inline comm::Group late_group(const comm::Group& group) {
  return late_group(comm::gather_texts(new_job(), group)[0], group.rank(), group.size());
}

}  // namespace shardwise::testing

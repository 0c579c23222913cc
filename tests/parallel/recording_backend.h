// A backend that is not synchronous, like a network's, and records when each collective is launched and when
// it is waited for.
#pragma once
#include <functional>

#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/transport.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {

class RecordingBackend final : public comm::C10dBackend {
 public:
  /// Called at the launch (`begins`) and at the wait of each collective. `number` counts all collectives,
  /// from 1.
  using Record = std::function<void(const char* op, int number, bool begins)>;

  RecordingBackend(std::shared_ptr<comm::CollectiveBackend> backend, Record record)
      : comm::C10dBackend(std::move(backend)), record_(std::move(record)) {}

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return recorded("all_reduce", [&] { return C10dBackend::allreduce(tensors, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return recorded("broadcast", [&] { return C10dBackend::broadcast(tensors, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return recorded("gather", [&] { return C10dBackend::gather(outputs, inputs, options); });
  }

 private:
  struct RecordingWork final : c10d::Work {
    explicit RecordingWork(std::function<void()> record) : record_wait(std::move(record)) {}
    bool wait(std::chrono::milliseconds) override {
      record_wait();
      return true;
    }
    std::function<void()> record_wait;
  };

  WorkPtr recorded(const char* op, const std::function<WorkPtr()>& call) {
    const int number = ++count_;
    record_(op, number, /*begins=*/true);
    call()->wait();
    return c10::make_intrusive<RecordingWork>([this, op, number] { record_(op, number, /*begins=*/false); });
  }

  Record record_;
  int count_ = 0;
};

/// Collective: creates a group whose backend calls `record`.
inline comm::Group recording_group(const std::string& job, int rank, int ranks,
                                   RecordingBackend::Record record) {
  const comm::shm::ConnectOptions shm_options = options(job, rank, ranks);
  return comm::Group(c10::make_intrusive<RecordingBackend>(
      std::make_shared<comm::shm::Transport>(comm::shm::rendezvous(shm_options), rank, shm_options.timeout),
      std::move(record)));
}

}  // namespace shardwise::testing

// A backend that does not work in its calls, as a network's, and says when each of its collectives begins and
// when it is waited for.
#pragma once
#include <functional>

#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/transport.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {

class RecordingBackend final : public comm::Backend {
 public:
  /// `number` counts the calls of all kinds, from 1.
  using Tell = std::function<void(const char* op, int number, bool begins)>;

  RecordingBackend(std::shared_ptr<comm::CollectiveBackend> forms, Tell tell)
      : comm::Backend(std::move(forms)), tell_(std::move(tell)) {}
  bool is_synchronous() const override { return false; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return told("sum", [&] { return Backend::allreduce(tensors, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return told("broadcast", [&] { return Backend::broadcast(tensors, options); });
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return told("gather", [&] { return Backend::gather(outputs, inputs, options); });
  }

 private:
  struct RecordingWork final : c10d::Work {
    explicit RecordingWork(std::function<void()> tell) : tell_end(std::move(tell)) {}
    bool wait(std::chrono::milliseconds) override {
      tell_end();
      return true;
    }
    std::function<void()> tell_end;
  };

  WorkPtr told(const char* op, const std::function<WorkPtr()>& call) {
    const int number = ++count_;
    tell_(op, number, /*begins=*/true);
    call()->wait();
    return c10::make_intrusive<RecordingWork>([this, op, number] { tell_(op, number, /*begins=*/false); });
  }

  Tell tell_;
  int count_ = 0;
};

/// Collective. The group keeps `tell`.
inline comm::Group recording_group(const std::string& job, int rank, int ranks, RecordingBackend::Tell tell) {
  const comm::shm::Options meeting = options(job, rank, ranks);
  return comm::Group(c10::make_intrusive<RecordingBackend>(
      std::make_shared<comm::shm::Transport>(comm::shm::meet(meeting), rank, meeting.timeout),
      std::move(tell)));
}

}  // namespace shardwise::testing

// Work of the fake device that is recorded once and run again and again, as a CUDA graph.
#pragma once
#include <functional>
#include <vector>

#include "tests/support/emulator/emulator.h"

namespace shardwise::fake_device {

/// Runs `work` of the host with the device's memory open (Open), or records it while a graph is captured.
void run_or_record(const std::function<void()>& work);

/// Kernels, operations of ATen and other work that was recorded, with the memory that they use.
class Graph {
 public:
  /// Records what `queue_work` does on the device. Errors: its own; c10::Error or emulator::Fault if it makes
  /// the host wait, or copies from the host.
  explicit Graph(const std::function<void()>& queue_work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Queues all of it.
  void replay() const;

 private:
  emulator::Graph operations_;
  std::vector<void*> kept_;  // blocks that tensors gave back meanwhile
};

}  // namespace shardwise::fake_device

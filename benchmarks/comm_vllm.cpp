// The loops of benchmarks/comm_peer.py over the all_reduce of vLLM's CPU library; called from Python, every
// call would take a microsecond more. comm_peer.py compiles this file without torch, because a tensor is only
// a pointer here.
#include "shardwise/bench/timing.h"

namespace {

/// `shm_allreduce(int64_t, at::Tensor&)`; at::Tensor is only a pointer to its TensorImpl.
using Reduce = void (*)(int64_t handle, void** tensor);

struct Loop {
  Reduce reduce;
  int64_t handle;
  void *tensor, *data;
  int64_t bytes;
  bool is_bf16;
};

}  // namespace

extern "C" {

void call_steps(Loop* loop, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) loop->reduce(loop->handle, &loop->tensor);
}

void write_and_call_steps(Loop* loop, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) {
    shardwise::bench::write_ones(loop->data, loop->bytes, loop->is_bf16);
    loop->reduce(loop->handle, &loop->tensor);
  }
}

void write_steps(Loop* loop, int64_t steps) {
  for (int64_t i = 0; i < steps; ++i) shardwise::bench::write_ones(loop->data, loop->bytes, loop->is_bf16);
}
}

// CUDA kernels on the CPU, for tests: one fiber per CUDA thread, with the rules of CUDA checked.
//
// The kernels' sources are compiled by g++ against device_code.h of this directory, and the host's code links
// runtime.cpp instead of libcudart. Streams are lazy: nothing runs before something waits for it, and then
// the operations run in any order that streams and events allow. What it cannot show: speed, scopes of
// atomics, and bits of approximate instructions.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/support/emulator/fault.h"

namespace shardwise::emulator {

/// Who goes first among threads, blocks and operations of streams that CUDA leaves unordered.
enum class Order { forward, backward, random };

struct Settings {
  Order order = Order::forward;
  unsigned seed = 0;        // of Order::random
  int resident_blocks = 4;  // at once, of all kernels
};
/// Sets them for what is queued from now on. Nothing may be queued.
void set(const Settings& settings);

/// Held by each function of CUDA's runtime while it runs. Who holds it keeps other threads from the device.
std::recursive_mutex& mutex();

/// Sets the function that runs what was queued: it must call its argument once. It may prepare what
/// operations use, such as memory that is closed to the host.
using Runner = std::function<void(const std::function<void()>& run)>;
void set_runner(Runner runner);

/// Returns how many kernels this process has launched, those of replayed graphs included.
int64_t launches();

/// Returns whether a sanitizer watches this program: a thread then takes 50 times as long.
bool is_sanitized();

/// Queues a kernel; `body` is what each thread runs. Errors: Fault if a block would have no thread or more
/// than 1,024, or if the grid is empty or too large. A Fault of the kernel is thrown by what waits for it.
void launch(cudaStream_t stream, dim3 blocks, dim3 threads, std::function<void()> body);
/// Queues a function of the host. `also`: an event that it waits for, or null.
void queue(cudaStream_t stream, std::function<void()> body, cudaEvent_t also = nullptr);
/// Runs all that was queued, as cudaDeviceSynchronize does, which no stream may be captured for.
void run_queued();

struct Operation;
/// What was queued in a captured stream, in its order.
using Graph = std::vector<std::shared_ptr<const Operation>>;

/// Until end_capture, what is queued in the default stream is recorded instead. Meanwhile it is a Fault to
/// wait for the device, or for an event of another stream.
void begin_capture();
Graph end_capture();
bool is_capturing();
/// Queues the operations once more in the default stream.
void replay(const Graph& graph);

}  // namespace shardwise::emulator

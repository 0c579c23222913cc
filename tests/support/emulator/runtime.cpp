// CUDA's runtime, as far as the project's host code calls it: streams, events, copies and memory of the
// emulated device. A function that is not here fails to link. Memory of the device is the process's, filled
// with NaNs.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "tests/support/emulator/device.h"

using shardwise::emulator::Device;
using shardwise::emulator::Fault;
using shardwise::emulator::Grid;
using shardwise::emulator::Operation;
using Lock = std::lock_guard<std::recursive_mutex>;

struct CUstream_st {
  std::shared_ptr<Operation> last;
  std::optional<shardwise::emulator::Graph> captured = {};
};
struct CUevent_st {
  std::shared_ptr<Operation> recorded;
};

namespace {

/// Like any other stream: the project's do not wait for it (cudaStreamNonBlocking).
CUstream_st& default_stream() {
  static CUstream_st stream;
  return stream;
}

CUstream_st& stream_of(cudaStream_t stream) {
  return stream ? *stream : default_stream();
}

/// Queues an operation behind the last one of the stream, and behind `also` if there is one. Records it if
/// the stream is captured.
void put(cudaStream_t stream, const std::shared_ptr<Operation>& operation,
         const std::shared_ptr<Operation>& also = nullptr) {
  const Lock lock(shardwise::emulator::mutex());
  if (std::optional<shardwise::emulator::Graph>& captured = stream_of(stream).captured) {
    if (also) throw Fault("capture: a captured stream waits for an event");
    captured->push_back(operation);
    return;
  }
  std::shared_ptr<Operation>& last = stream_of(stream).last;
  if (last) operation->after.push_back(last);
  if (also) operation->after.push_back(also);
  Device::instance().add(operation);
  last = operation;
}

void check_no_capture() {
  if (shardwise::emulator::is_capturing()) throw Fault("capture: the host waits for the device meanwhile");
}

void wait_for(const std::shared_ptr<Operation>& operation) {
  const Lock lock(shardwise::emulator::mutex());
  if (!operation) return;
  Device::instance().run_until_done(*operation);
  operation->ended.acquire();
}

}  // namespace

namespace shardwise::emulator {

std::recursive_mutex& mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

void set(const Settings& settings) {
  const Lock lock(mutex());
  Device::instance().set(settings);
}

void set_runner(Runner runner) {
  const Lock lock(mutex());
  Device::instance().set_runner(std::move(runner));
}

int64_t launches() {
  const Lock lock(mutex());
  return Device::instance().launches();
}

void run_queued() {
  const Lock lock(mutex());
  const auto all = std::make_shared<Operation>();
  all->after = Device::instance().pending();
  Device::instance().add(all);
  wait_for(all);
}

bool is_capturing() {
  const Lock lock(mutex());
  return default_stream().captured.has_value();
}

void begin_capture() {
  const Lock lock(mutex());
  check_no_capture();
  default_stream().captured.emplace();
}

Graph end_capture() {
  const Lock lock(mutex());
  Graph graph = std::move(*default_stream().captured);
  default_stream().captured.reset();
  return graph;
}

void replay(const Graph& graph) {
  const Lock lock(mutex());
  for (const auto& recorded : graph) {
    auto operation = std::make_shared<Operation>();
    operation->body = recorded->body;
    if (recorded->grid) operation->grid = Grid{recorded->grid->blocks, recorded->grid->threads};
    put(/*stream=*/nullptr, operation);
  }
}

void launch(cudaStream_t stream, dim3 blocks, dim3 threads, std::function<void()> body) {
  constexpr uint64_t kMostThreads = 1024, kMostBlocks = 65'535;  // the latter in y and z
  const uint64_t count = uint64_t{threads.x} * threads.y * threads.z;
  if (count == 0 || count > kMostThreads || blocks.x == 0 || blocks.y == 0 || blocks.z == 0 ||
      blocks.x > 0x7fffffffu || blocks.y > kMostBlocks || blocks.z > kMostBlocks)
    throw Fault(
        "launch: a block must have 1 to 1,024 threads, and a grid at least one block and at most "
        "2³¹ − 1, 65,535 and 65,535");
  auto operation = std::make_shared<Operation>();
  operation->body = std::move(body);
  operation->grid = Grid{blocks, threads};
  put(stream, operation);
}

void queue(cudaStream_t stream, std::function<void()> body, cudaEvent_t also) {
  const Lock lock(mutex());
  auto operation = std::make_shared<Operation>();
  operation->body = std::move(body);
  put(stream, operation, also ? also->recorded : nullptr);
}

}  // namespace shardwise::emulator

extern "C" {

cudaError_t cudaGetLastError() {
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  check_no_capture();
  wait_for(stream_of(stream).last);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  wait_for(stream->last);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  check_no_capture();
  shardwise::emulator::run_queued();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(shardwise::emulator::mutex());
  event->recorded = stream_of(stream).last;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  check_no_capture();
  wait_for(event->recorded);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->recorded) shardwise::emulator::queue(stream, nullptr, event);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  shardwise::emulator::queue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  shardwise::emulator::queue(stream, [=] { function(argument); });
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(shardwise::emulator::mutex());
  *status = stream_of(stream).captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  shardwise::emulator::queue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  std::memset(*memory, 0xff, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}

cudaError_t cudaMallocManaged(void** memory, size_t bytes, unsigned) {
  return cudaMalloc(memory, bytes);
}

cudaError_t cudaFree(void* memory) {
  cudaDeviceSynchronize();
  std::free(memory);
  return cudaSuccess;
}
}

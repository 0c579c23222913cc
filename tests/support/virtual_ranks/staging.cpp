#include "tests/support/virtual_ranks/staging.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <cuda_runtime_api.h>

#include <deque>

#include "shardwise/cuda/runtime.h"

namespace shardwise::virtual_ranks {
namespace {

void check(cudaError_t error) {
  TORCH_CHECK(error == cudaSuccess, "virtual ranks: CUDA's error ", static_cast<int>(error));
}

/// Memory of the host that the device copies asynchronously. What a graph uses is never given back.
class Arena {
 public:
  static Arena& instance() {
    static Arena& arena = *new Arena;
    return arena;
  }

  /// From now on take() gives all that no graph uses.
  void begin() { taken_ = kept_; }
  /// What was taken since begin() is a graph's.
  void keep() { kept_ = taken_; }
  at::Tensor take(const at::Tensor& like) {
    constexpr size_t kAlignment = 64;
    void* const memory = begin_ + taken_;
    taken_ += (like.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
    TORCH_CHECK(taken_ <= kBytes, "virtual ranks: copies must fit ", kBytes, " bytes");
    return at::from_blob(memory, like.sizes(), like.options().device(at::kCPU));
  }

 private:
  static constexpr size_t kBytes = size_t{64} << 20;

  Arena() { check(cudaHostAlloc(reinterpret_cast<void**>(&begin_), kBytes, cudaHostAllocDefault)); }

  char* begin_ = nullptr;
  size_t taken_ = 0, kept_ = 0;
};

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

/// One call, on copies at fixed addresses.
struct Call {
  Tensors reads, writes;
  HostCall call;

  void operator()() { call(reads, writes); }
};

/// Calls of graphs, which may be replayed until the process ends.
Call& kept(Call call) {
  static std::deque<Call>& calls = *new std::deque<Call>;
  return calls.emplace_back(std::move(call));
}

}  // namespace

void call_on_host(const Tensors& reads, const Tensors& writes, const HostCall& call) {
  const cudaStream_t stream = cuda::current_stream();
  Arena& arena = Arena::instance();
  arena.begin();
  Call staged{{}, {}, call};
  for (const at::Tensor& x : reads) {
    const at::Tensor from = x.contiguous();
    staged.reads.push_back(arena.take(from));
    check(cudaMemcpyAsync(staged.reads.back().mutable_data_ptr(), from.const_data_ptr(), from.nbytes(),
                          cudaMemcpyDeviceToHost, stream));
  }
  for (const at::Tensor& x : writes) staged.writes.push_back(arena.take(x));
  const Tensors results = staged.writes;
  if (is_captured(stream)) {
    arena.keep();
    check(cudaLaunchHostFunc(
        stream, [](void* kept) { (*static_cast<Call*>(kept))(); }, &kept(std::move(staged))));
  } else {
    check(cudaStreamSynchronize(stream));
    staged();
  }
  for (size_t i = 0; i < writes.size(); ++i) {
    const bool is_dense = writes[i].is_contiguous();
    const at::Tensor to = is_dense ? writes[i] : at::empty_like(writes[i], at::MemoryFormat::Contiguous);
    check(cudaMemcpyAsync(to.mutable_data_ptr(), results[i].const_data_ptr(), to.nbytes(),
                          cudaMemcpyHostToDevice, stream));
    if (!is_dense) writes[i].copy_(to, /*non_blocking=*/true);
  }
}

}  // namespace shardwise::virtual_ranks

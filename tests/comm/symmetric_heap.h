// c10d's symmetric memory on ranks that are threads, each with its own registry of groups.
#pragma once
#include <ATen/ops/full.h>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "shardwise/comm/shm/symmetric_memory.h"
#include "tests/comm/backends.h"

namespace shardwise::testing {

using SymmetricHandle = c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory>;

/// Registers a group with c10d under `name` for this object's lifetime.
class Registered {
 public:
  Registered(std::string name, const c10::intrusive_ptr<c10d::Backend>& backend)
      : name_(std::move(name)),
        group_(c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize())) {
    group_->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    c10d::register_process_group(name_, group_);
  }
  ~Registered() { c10d::unregister_process_group(name_); }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

inline constexpr const char* kDefaultGroup = "0";

/// Runs on_backends with each backend registered as c10d's default group.
inline void on_registered(int ranks, const BackendBody& body, int timeout_ms = 20'000) {
  comm::shm::register_symmetric_memory();
  c10d::set_thread_isolation_mode(true);
  on_backends(
      ranks,
      [&](comm::shm::Backend& backend, int rank) {
        const Registered group(kDefaultGroup, c10::intrusive_ptr<comm::shm::Backend>::reclaim_copy(&backend));
        body(backend, rank);
      },
      timeout_ms);
  c10d::set_thread_isolation_mode(false);
}

/// Allocates `numel` floats of symmetric memory, each `value`.
inline at::Tensor symmetric(int64_t numel, double value,
                            const std::optional<std::string>& group = std::nullopt) {
  return c10d::symmetric_memory::empty_strided_p2p({numel}, {1}, at::kFloat, c10::kCPU, group, std::nullopt)
      .fill_(value);
}

inline SymmetricHandle rendezvous_over(const at::Tensor& x, const std::string& group = kDefaultGroup) {
  return c10d::symmetric_memory::rendezvous(x, group);
}

/// Returns a rank's full buffer of floats.
inline at::Tensor buffer_of(const SymmetricHandle& handle, int rank) {
  return handle->get_buffer(rank, {int64_t(handle->get_buffer_size() / sizeof(float))}, at::kFloat, 0);
}

/// Returns the message of the ValueError that `call` throws, without its code, or "no error".
inline std::string value_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return base::without_code(base::one_line(error));
  }
  return "no error";
}

}  // namespace shardwise::testing

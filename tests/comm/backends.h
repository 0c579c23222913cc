// Ranks as threads, each with the c10d backend that torch programs use.
#pragma once
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/backend.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {

using Tensors = comm::shm::Backend::Tensors;
using WorkPtr = comm::shm::Backend::WorkPtr;
using BackendBody = std::function<void(comm::shm::Backend&, int rank)>;

/// Runs `body` on each rank of a group. An error fails the test and aborts the group.
inline void on_backends(int ranks, const BackendBody& body, int timeout_ms = 20'000) {
  on_threads(ranks, [&](int rank, const std::string& job) {
    const comm::shm::ConnectOptions group_options = options(job, rank, ranks, timeout_ms);
    const auto backend = c10::make_intrusive<comm::shm::Backend>(std::make_shared<comm::shm::Transport>(
        comm::shm::rendezvous(group_options), rank, group_options.timeout));
    try {
      body(*backend, rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << base::one_line(error);
      backend->abort();
    }
  });
}

/// Returns, per rank, the text of the CommError that `body` throws, or "no error".
inline std::vector<std::string> errors_of(int ranks, const BackendBody& body, int timeout_ms = 20'000) {
  std::vector<std::string> errors(size_t(ranks), "no error");
  on_backends(
      ranks,
      [&](comm::shm::Backend& backend, int rank) {
        try {
          body(backend, rank);
        } catch (const base::CommError& error) {
          errors[size_t(rank)] = base::one_line(error);
        }
      },
      timeout_ms);
  return errors;
}

inline bool says(const std::string& line, const std::string& words) {
  return line.find(words) != std::string::npos;
}

enum class Memory { unregistered, strided, in_heap, strided_in_heap };
inline constexpr Memory kMemories[] = {Memory::unregistered, Memory::strided, Memory::in_heap,
                                       Memory::strided_in_heap};

/// Returns a copy of `x` in memory of that kind; strided ones have gaps between all elements.
inline at::Tensor placed(comm::shm::Backend& backend, const at::Tensor& x, Memory memory) {
  const bool strided = memory == Memory::strided || memory == Memory::strided_in_heap;
  const bool in_heap = memory == Memory::in_heap || memory == Memory::strided_in_heap;
  at::DimVector sizes(x.sizes());
  if (strided) sizes.push_back(2);
  const long numel = long(x.numel() * (strided ? 2 : 1));
  const at::Tensor flat =
      in_heap ? backend.allocateTensor(numel, x.options()) : at::empty({numel}, x.options());
  const at::Tensor result = strided ? flat.view(sizes).select(-1, 1) : flat.view(sizes);
  result.copy_(x);
  return result;
}

/// Returns an output shaped like `x`, filled with 77.
inline at::Tensor placed_like(comm::shm::Backend& backend, const at::Tensor& x, Memory memory) {
  at::Tensor result = placed(backend, x, memory);
  return result.fill_(77);
}

}  // namespace shardwise::testing

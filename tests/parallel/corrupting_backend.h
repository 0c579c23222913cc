// A backend whose gathers return other values on this rank while `corrupts` is set, as a faulty memory or
// network would: all_gather, and the broadcasts of a chunked one.
#pragma once
#include "shardwise/comm/c10d_backend.h"
#include "shardwise/comm/group.h"
#include "shardwise/comm/shm/transport.h"
#include "tests/comm/threads.h"

namespace shardwise::testing {

class CorruptingBackend final : public comm::C10dBackend {
 public:
  using comm::C10dBackend::C10dBackend;
  bool corrupts = false;
  int64_t chunk_of_rank_0 = 0;  // if above 0, changes only broadcasts from rank 0 of this many elements

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    WorkPtr work = C10dBackend::allgather(outputs, inputs, options);
    if (corrupts) outputs[0][0].add_(1);
    return work;
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    WorkPtr work = C10dBackend::_allgather_base(output, input, options);
    if (corrupts) output.add_(1);
    return work;
  }
  /// Does not change other broadcasts from rank 0, with which `verify` compares.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    WorkPtr work = C10dBackend::broadcast(tensors, options);
    const bool is_chunk = chunk_of_rank_0 > 0 ? options.rootRank == 0 && tensors[0].numel() == chunk_of_rank_0
                                              : options.rootRank != 0;
    if (corrupts && is_chunk && options.rootRank != getRank()) tensors[0].add_(1);
    return work;
  }
};

struct CorruptingGroup {
  c10::intrusive_ptr<CorruptingBackend> backend;
  comm::Group group;  // without a symmetric heap
};

/// Collective.
inline CorruptingGroup corrupting_group(const std::string& job, int rank, int ranks) {
  const comm::shm::ConnectOptions shm_options = options(job, rank, ranks);
  auto backend = c10::make_intrusive<CorruptingBackend>(
      std::make_shared<comm::shm::Transport>(comm::shm::rendezvous(shm_options), rank, shm_options.timeout));
  return {backend, comm::Group(backend)};
}

}  // namespace shardwise::testing

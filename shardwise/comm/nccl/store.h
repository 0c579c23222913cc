// The c10d store through which the ranks of a group exchange NCCL's address.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/comm/group.h"

namespace shardwise::comm::nccl {

/// Opens a store that rank 0 serves at a free port of `address` (a name or IP address of its node that all
/// ranks can reach; read at rank 0 only) until rank 0 releases it. Collective over `bootstrap_group`.
/// Errors: base::CommError naming the rank that cannot serve or reach it; those of `bootstrap_group`.
c10::intrusive_ptr<c10d::Store> open_store(const Group& bootstrap_group, const std::string& address,
                                           std::chrono::milliseconds timeout);

}  // namespace shardwise::comm::nccl

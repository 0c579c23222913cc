// Where the ranks of one group leave each other NCCL's address.
#pragma once
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shardwise/comm/group.h"

namespace shardwise::comm::nccl {

/// Collective over `meeting`: a store that rank 0 serves, at a free port of `host` (a name or address of its
/// machine that all can reach; read at rank 0 only), for as long as it holds it.
/// Errors: base::CommError that names the rank which cannot serve or reach it; the meeting's.
c10::intrusive_ptr<c10d::Store> open_store(const Group& meeting, const std::string& host,
                                           std::chrono::milliseconds timeout);

}  // namespace shardwise::comm::nccl

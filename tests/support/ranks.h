// Runs one function on t ranks, as threads of this process joined by the shared-memory backend.
//
// The threads and their group are reused by the next call, so that a case costs little more than its body;
// after an error the group is created again. Ranks that must die are separate processes
// (tests/comm/workers.h). They cannot be forked without exec, because this process has threads that may hold
// locks.
#pragma once
#include <functional>

#include "shardwise/comm/mesh.h"

namespace shardwise::testing {

/// Calls `body(group)` on `ranks` threads. On an error, aborts the group for the other ranks and rethrows the
/// first error. Each call resets the counters and ends with a barrier, which also detects ranks that called
/// different numbers of collectives. A fatal test assertion in one rank stops the others. Each rank has one
/// ATen thread.
void on_ranks(int ranks, const std::function<void(comm::Group)>& body);

/// As on_ranks; `connect` connects some of the ranks, as parts of one job. Each name is used once.
void on_parts(int ranks,
              const std::function<void(const comm::Group& world, const comm::Mesh::Connect& connect)>& body);

/// Makes the mesh of a rank from a function that connects its groups.
using MakeMesh = std::function<comm::Mesh(const comm::Group& world, const comm::Mesh::Connect& connect)>;

/// As on_ranks, with a mesh whose groups share memory and are parts of one job.
void on_mesh(int ranks, const MakeMesh& make_mesh, const std::function<void(const comm::Mesh&)>& body);

}  // namespace shardwise::testing

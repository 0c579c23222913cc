// Who has a job's socket: the kernel's list of unix sockets (sock_diag) names the owner of one that does not
// listen, too.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

namespace shardwise::comm::shm {

/// Returns the user who has bound the job's socket; nullopt if nobody has, or if the kernel has no such list
/// for this process: before Linux 5.3, without unix_diag, or in a sandbox.
std::optional<uid_t> socket_owner(const std::string& job);

}  // namespace shardwise::comm::shm

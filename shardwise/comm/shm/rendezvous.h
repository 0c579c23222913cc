// Rendezvous of the ranks of one node, at an abstract unix socket whose name is a hash of the user and the
// job.
//
// Rank 0 listens. Every rank sends it a memory region and a pidfd of its own process, as file descriptors,
// and receives those of all peers. Nothing has a name in any file system. The sockets are closed at the end
// of the rendezvous. Both sides refuse another user, and then a process that does not prove that it knows the
// job's secret (introduction.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/introduction.h"
#include "shardwise/comm/shm/one_shot.h"
#include "shardwise/comm/shm/region.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm::shm {

struct Member {
  Region region;
  int pid;   // for error messages; valid in the peer's own pid namespace
  Fd pidfd;  // readable once the process has exited; empty for ranks of this process, or without kernel
             // support
};

/// The result of a rendezvous.
struct Rendezvous {
  std::vector<Member> members;  // by rank; the local region keeps its file open, those of the peers do not
  int cores = 1;                // the number of cores that at least one of the ranks may run on
  OneShotLimit one_shot;        // equal on all ranks
};

/// Returns the name of the job's socket, without the leading zero that makes it abstract.
std::string socket_name(const std::string& job);
/// Collective. Errors: base::CommError if a rank times out, if its rank, size or secret contradicts rank 0's,
/// or if another user's process has the job's socket.
Rendezvous rendezvous(const ConnectOptions& options);
/// Checks `options` before a rendezvous. Errors: c10::ValueError.
void check_options(const ConnectOptions& options);

/// The message that each rank sends to its peers: plain bytes, because all ranks run this program on this
/// node, and two file descriptors.
struct Handshake {
  struct Bytes {
    Header header;
    PeerInfo peer;  // without the secret
    uint64_t region_bytes;
    OneShotLimit one_shot;  // rank 0's applies to all; rank 0 sets it when all ranks have connected
  } info{};
  Fd region;
  Fd pidfd;  // empty if the kernel has no pidfds
};

/// Returns the number of cores that at least one of the ranks may run on.
int usable_cores(const std::vector<Handshake>& handshakes);

/// Returns the handshake of a rank of this process.
Handshake make_handshake(const ConnectOptions& options, const Region& region);

struct ReceivedHandshake {
  enum class Kind {
    handshake,
    closed,  // the peer closed the socket
    reject,  // rank 0's rendezvous has failed
    other_version,
    unknown,             // not a message of this program
    without_descriptors  // this process has no descriptors left: the bytes alone
  };
  Kind kind;
  Handshake handshake;
};

/// Returns 0 or an errno: EPIPE or ECONNRESET if the peer closed the socket, ETOOMANYREFS while this user has
/// more descriptors in flight than a process may have, EAGAIN if the socket's send timeout passes before
/// there is room.
int send_handshake(const Fd& socket, const Handshake& handshake);
ReceivedHandshake receive_handshake(const Fd& socket);

}  // namespace shardwise::comm::shm

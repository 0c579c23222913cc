// The handshake message of a rendezvous: what each rank sends to its peers over a unix socket.
#pragma once
#include <cstdint>
#include <string>

#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/one_shot.h"
#include "shardwise/comm/shm/region.h"

namespace shardwise::comm::shm {

/// The message: plain bytes, because all ranks run this program on this node, and two file descriptors.
struct Handshake {
  struct Bytes {
    uint64_t magic;
    PeerInfo peer;
    uint64_t region_bytes;
    OneShotLimit one_shot;  // rank 0's applies to all; rank 0 sets it when all ranks have connected
  } info{};
  Fd region;
  Fd pidfd;  // empty if the kernel has no pidfds

  bool is_reject() const { return info.peer.rank < 0; }
};

/// Returns the handshake of a rank of this process.
Handshake make_handshake(const std::string& job, int rank, int size, const Region& region);
/// Returns the message that rank 0 sends to connected ranks when the rendezvous fails.
Handshake make_reject();

struct ReceivedHandshake {
  enum class Kind {
    handshake,
    closed,  // the peer closed the socket
    other_version,
    unknown,             // not a message of this program
    without_descriptors  // this process has no descriptors left: the bytes alone
  };
  Kind kind;
  Handshake handshake;
};

/// Returns 0 or an errno: EPIPE or ECONNRESET if the peer closed the socket, ETOOMANYREFS while this user has
/// more descriptors in flight than a process may have, EAGAIN if the socket's send timeout passes before
/// there is room. A reject does not wait for room.
int send_handshake(const Fd& socket, const Handshake& handshake);
ReceivedHandshake receive_handshake(const Fd& socket);

}  // namespace shardwise::comm::shm

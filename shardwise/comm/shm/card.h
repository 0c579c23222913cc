// What a rank hands to the others when they meet, and how it goes over a unix socket.
#pragma once
#include <sched.h>

#include <cstdint>

#include "shardwise/comm/shm/one_shot.h"
#include "shardwise/comm/shm/region.h"

namespace shardwise::comm::shm {

/// What a rank tells of itself. Plain bytes: all ranks run this program on this host.
struct Hello {
  uint64_t magic;
  int32_t rank, size, pid;
  uint64_t process;  // a random number per process: pids of two pid namespaces may be equal
  uint64_t region_bytes;
  cpu_set_t cores;        // that it may run on
  OneShotLimit one_shot;  // rank 0's holds for all; its to say when all have come
};

struct Card {
  Hello hello{};
  Fd region;
  Fd lifetime;  // a pidfd; none where the kernel has none

  bool is_refusal() const { return hello.rank < 0; }
};

/// The card of a rank of this process.
Card introduce(int rank, int size, const Region& region);
/// What the host sends to those who came when the meeting fails.
Card refusal();

struct Received {
  enum class As {
    card,
    nothing,  // the other side has closed the socket
    other_version,
    something_else,
    without_files  // this process has no descriptors left for them: the hello alone
  };
  As as;
  Card card;
};

/// 0, or the errno of what kept it: EPIPE or ECONNRESET when the other side has closed the socket,
/// ETOOMANYREFS while more descriptors of this user are under way than a process may have, EAGAIN when the
/// socket's time is over before there is room. A refusal does not wait for room.
int send_card(const Fd& socket, const Card& card);
Received receive_card(const Fd& socket);

}  // namespace shardwise::comm::shm

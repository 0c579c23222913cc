#include "shardwise/comm/shm/rendezvous_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <thread>

#include "shardwise/base/hash.h"

namespace shardwise::comm::shm {

// The job's name may be private: only hashes of it are visible in /proc/net/unix.
std::string socket_name(const std::string& job) {
  return fmt::format("shardwise/{}/{:016x}{:016x}", getuid(), base::hash_of(job),
                     base::hash_of("shardwise/" + job));
}

SocketAddress::SocketAddress(const std::string& job) {
  const std::string name = socket_name(job);
  socket.sun_family = AF_UNIX;
  std::memcpy(socket.sun_path + 1, name.data(), name.size());  // a leading zero makes it abstract
  length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Fd new_socket(const ConnectDeadline& deadline) {
  Fd result(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!result) deadline.fail(-1, fmt::format("cannot create a socket; {} [SW0334]", std::strerror(errno)));
  return result;
}

std::optional<uid_t> peer_user(const Fd& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer.uid;
}

void check_owner(std::optional<uid_t> owner, const ConnectDeadline& deadline) {
  if (owner && *owner != getuid())
    deadline.fail(0, fmt::format("the socket of this job belongs to user {} [SW0340]", *owner));
}

void name_socket(const Fd& socket, const ConnectDeadline& deadline) {
  const sockaddr none{AF_UNIX, {}};
  if (bind(socket.get(), &none, sizeof(none.sa_family)) != 0) fail_to_bind(deadline);
}

int left_ms(const ConnectDeadline& deadline) {
  return int(std::min<int64_t>(deadline.left().count(), INT_MAX));
}

void limit_waits(const Fd& socket, const ConnectDeadline& deadline) {
  const int ms = std::max(1, left_ms(deadline));  // 0 would mean no limit
  const timeval left{ms / 1000, ms % 1000 * 1000L};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
}

bool wait_readable(const Fd& socket, const ConnectDeadline& deadline) {
  pollfd request{socket.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&request, 1, left_ms(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

ssize_t receive_message(const Fd& socket, msghdr& message) {
  const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  const bool is_reset = received < 0 && errno == ECONNRESET;
  return is_reset ? recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC) : received;
}

void fail_to_bind(const ConnectDeadline& deadline) {
  deadline.fail(-1, fmt::format("cannot bind a socket; {} [SW0341]", std::strerror(errno)));
}

void fail_other_version(int peer, const ConnectDeadline& deadline) {
  deadline.fail(peer, "the ranks run different versions of this program [SW0336]");
}

void fail_rejected(const ConnectDeadline& deadline) {
  deadline.fail(0, "rank 0 aborted the rendezvous [SW0338]");
}

bool send_to(const Fd& socket, const Handshake& handshake, int rank, const ConnectDeadline& deadline) {
  limit_waits(socket, deadline);
  int error = send_handshake(socket, handshake);
  while ((error == ETOOMANYREFS || error == EINTR) && !deadline.is_over()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    error = send_handshake(socket, handshake);
  }
  const bool is_closed = error == EPIPE || error == ECONNRESET;
  if (error != 0 && !is_closed)
    deadline.fail(rank, fmt::format("cannot send to rank {}; {} [SW0332]", rank,
                                    std::strerror(error == EAGAIN ? ETIMEDOUT : error)));
  return error == 0;
}

std::optional<Handshake> receive_from(const Fd& socket, int sender, const ConnectDeadline& deadline) {
  using Kind = ReceivedHandshake::Kind;
  ReceivedHandshake received = receive_handshake(socket);
  if (received.kind == Kind::other_version) fail_other_version(sender, deadline);
  if (received.kind == Kind::reject && sender == 0) fail_rejected(deadline);
  if (received.kind == Kind::unknown && sender == 0)
    deadline.fail(sender, "another program answered at the socket of rank 0 [SW0337]");
  if (received.kind == Kind::without_descriptors) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int rank = received.handshake.info.peer.rank;
    deadline.fail(-1, fmt::format("rank {} has no descriptors left for the memory of rank {}; got a limit of "
                                  "{} by `ulimit -n` [SW0331]",
                                  deadline.rank(), rank, limit.rlim_cur));
  }
  if (received.kind != Kind::handshake) return std::nullopt;
  return std::move(received.handshake);
}

}  // namespace shardwise::comm::shm

// The sockets of a rendezvous: their address, their owners, and messages within a deadline.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>
#include <string>

#include "shardwise/comm/rendezvous.h"
#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {

/// The address of a job's socket, in the abstract namespace.
struct SocketAddress {
  explicit SocketAddress(const std::string& job);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }

  sockaddr_un socket{};
  socklen_t length;
};

/// Creates a socket. Errors: base::CommError.
Fd new_socket(const ConnectDeadline& deadline);
/// Returns the user who connected or listens at the other end; nullopt if it is not connected.
std::optional<uid_t> peer_user(const Fd& socket);
/// Fails if a job's socket belongs to another user than this process's.
void check_owner(std::optional<uid_t> owner, const ConnectDeadline& deadline);
/// Binds a socket to a name that the kernel chooses.
void name_socket(const Fd& socket, const ConnectDeadline& deadline);
/// Returns the time left for poll, in its int milliseconds: at most 24 days, though the timeout may be
/// longer.
int left_ms(const ConnectDeadline& deadline);
/// Limits connect and send, which wait for room at the peer, to the deadline.
void limit_waits(const Fd& socket, const ConnectDeadline& deadline);

/// Waits until `socket` is readable. Returns false at the deadline.
bool wait_readable(const Fd& socket, const ConnectDeadline& deadline);
/// Returns what recvmsg returns. If the peer closed the socket with bytes of ours unread, receives what it
/// had sent before.
ssize_t receive_message(const Fd& socket, msghdr& message);

/// Throws the error of a socket that cannot be bound, by errno.
[[noreturn]] void fail_to_bind(const ConnectDeadline& deadline);
/// Throws the error of a peer of another version.
[[noreturn]] void fail_other_version(int peer, const ConnectDeadline& deadline);
/// Throws the error of a rank that rank 0 rejects.
[[noreturn]] void fail_rejected(const ConnectDeadline& deadline);

/// Returns false if the peer closed the socket. Retries while other in-flight descriptors of this user leave
/// no room for ours. Errors: base::CommError.
bool send_to(const Fd& socket, const Handshake& handshake, int rank, const ConnectDeadline& deadline);
/// Returns nullopt if the peer closed the socket or is not one of our processes. `sender` is -1 if its rank
/// is not known yet. Errors: base::CommError, also if rank 0 rejects this rank.
std::optional<Handshake> receive_from(const Fd& socket, int sender, const ConnectDeadline& deadline);

}  // namespace shardwise::comm::shm

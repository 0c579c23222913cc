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
/// Returns the time left for poll, in its int milliseconds: at most 24 days, though the timeout may be
/// longer.
int left_ms(const ConnectDeadline& deadline);
/// Limits connect and send, which wait for room at the peer, to the deadline.
void limit_waits(const Fd& socket, const ConnectDeadline& deadline);

/// Returns false if the peer closed the socket. Retries while other in-flight descriptors of this user leave
/// no room for ours. Errors: base::CommError.
bool send_to(const Fd& socket, const Handshake& handshake, int rank, const ConnectDeadline& deadline);
/// Returns nullopt if the peer closed the socket or is not one of our processes. `sender` is -1 if its rank
/// is not known yet. Errors: base::CommError.
std::optional<Handshake> receive_from(const Fd& socket, int sender, const ConnectDeadline& deadline);

}  // namespace shardwise::comm::shm

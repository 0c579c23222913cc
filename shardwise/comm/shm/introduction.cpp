#include "shardwise/comm/shm/introduction.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>

#include "shardwise/base/random.h"
#include "shardwise/base/siphash.h"
#include "shardwise/comm/shm/rendezvous_socket.h"

namespace shardwise::comm::shm {
namespace {

uint64_t network_of(const Fd& socket) {
  uint64_t cookie = 0;
  socklen_t length = sizeof(cookie);
  return getsockopt(socket.get(), SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &length) == 0 ? cookie : 0;
}

/// Returns what getsockname or getpeername reports; "" for a socket without a name.
std::string name_from(int (*get_name)(int, sockaddr*, socklen_t*), const Fd& socket) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  constexpr socklen_t kBegin = offsetof(sockaddr_un, sun_path);
  if (get_name(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0 || length <= kBegin)
    return "";
  return {address.sun_path, length - kBegin};
}

template <class T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

Nonce random_nonce() {
  return {base::random_bits(), base::random_bits()};
}

void send_introduction(const Fd& socket, const Introduction& message) {
  send(socket.get(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

ReceivedIntroduction receive_introduction(const Fd& socket) {
  Introduction message;
  iovec body{&message, sizeof(message)};
  msghdr request{};  // without room for descriptors, which the kernel then closes
  request.msg_iov = &body;
  request.msg_iovlen = 1;
  const ssize_t received = receive_message(socket, request);
  if (received <= 0) return {/*is_closed=*/true, {}};
  const bool is_complete = received == ssize_t(sizeof(message)) && (request.msg_flags & MSG_TRUNC) == 0;
  if (!is_complete || !is_ours(message.header.magic)) return {};
  return {/*is_closed=*/false, message};
}

Connection Connection::at_rank_0(const Fd& socket, const std::string& job, const base::Secret& secret) {
  return {name_from(getpeername, socket), network_of(socket), job, secret};
}

Connection Connection::at_rank(const Fd& socket, const std::string& job, const base::Secret& secret) {
  return {name_from(getsockname, socket), network_of(socket), job, secret};
}

// The job comes last, so its end needs no mark.
uint64_t Connection::proof(Role prover, const Nonce& rank, const Nonce& rank_0) const {
  std::string text = "shardwise rendezvous";
  append(text, prover);
  append(text, rank);
  append(text, rank_0);
  append(text, network_);
  append(text, uint64_t(name_.size()));
  return base::siphash(secret_.words, text + name_ + job_);
}

bool introduce(const Fd& socket, const ConnectOptions& options, const ConnectDeadline& deadline) {
  using Role = Connection::Role;
  const Connection connection = Connection::at_rank(socket, options.job, options.secret);
  Introduction hello = Introduction::of(MessageType::hello), proof = Introduction::of(MessageType::proof);
  hello.nonce = random_nonce();
  send_introduction(socket, hello);  // if the socket is closed, receive_introduction finds out
  if (!wait_readable(socket, deadline)) deadline.fail_missing(0);
  const auto [is_closed, answer] = receive_introduction(socket);
  if (is_closed) return false;
  if (answer && answer->header.type == MessageType::reject) fail_rejected(deadline);
  if (!answer || answer->header.type != MessageType::challenge)
    deadline.fail(0, "another program answered at the socket of rank 0 [SW0337]");
  if (answer->proof != connection.proof(Role::rank_0, hello.nonce, answer->nonce)) {
    send_introduction(socket, Introduction::of(MessageType::refusal));
    deadline.fail(0,
                  "the process at the socket of rank 0 does not know the secret of this rank; got another "
                  "SHARDWISE_SECRET, another job of this name, or another program [SW0533]");
  }
  proof.proof = connection.proof(Role::other_rank, hello.nonce, answer->nonce);
  send_introduction(socket, proof);
  if (answer->header.magic != kMagic) fail_other_version(0, deadline);
  return true;
}

}  // namespace shardwise::comm::shm

// A socket of the kind that the rendezvous uses, what arrives at it, and the errors of a rendezvous, for its
// tests.
#pragma once
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "tests/comm/backends.h"

namespace shardwise::testing {

/// Returns the line of the base::CommError that `action` throws, or "no error".
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::CommError& error) {
    return base::one_line(error);
  }
  return "no error";
}

/// A message as it arrived. Its descriptors are closed.
struct RawMessage {
  std::string bytes;
  int descriptors = 0;
};

/// Returns the next message; no bytes at the end of the socket.
inline RawMessage receive_raw(const base::Fd& socket) {
  char bytes[4096];
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  iovec body{bytes, sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  RawMessage result;
  if (received > 0) result.bytes.assign(bytes, size_t(received));
  const cmsghdr* header = received < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr) result.descriptors = int((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  for (int i = 0; i < result.descriptors; ++i) ::close(reinterpret_cast<const int*>(CMSG_DATA(header))[i]);
  return result;
}

/// Sends the bytes of a message.
template <class Message>
void send_raw(const base::Fd& socket, const Message& message) {
  EXPECT_EQ(::send(socket.get(), &message, sizeof(message), MSG_NOSIGNAL), ssize_t(sizeof(message)));
}

/// A socket with the address of a job's rendezvous.
class RawSocket {
 public:
  explicit RawSocket(const std::string& job) {
    const std::string name = comm::shm::socket_name(job);
    length_ = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
  }
  const base::Fd& fd() const { return fd_; }
  int connect() { return ::connect(fd_.get(), address(), length_); }
  /// Waits for somebody who listens.
  void wait_and_connect() {
    while (connect() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int bind() { return ::bind(fd_.get(), address(), length_); }
  void listen(int backlog) {
    ASSERT_EQ(bind(), 0);
    ASSERT_EQ(::listen(fd_.get(), backlog), 0);
  }
  void close() { fd_ = base::Fd(); }
  /// Starts again with a new socket, of this process's present user.
  void renew() { fd_ = base::Fd(new_socket()); }
  base::Fd accept() { return base::Fd(::accept(fd_.get(), nullptr, nullptr)); }

 private:
  static int new_socket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  base::Fd fd_{new_socket()};
  sockaddr_un address_{};
  socklen_t length_;
};

}  // namespace shardwise::testing

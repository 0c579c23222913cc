// A socket of the kind that the rendezvous uses, and the errors of a rendezvous, for its tests.
#pragma once
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <functional>
#include <string>

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
  void listen(int backlog) {
    ASSERT_EQ(::bind(fd_.get(), address(), length_), 0);
    ASSERT_EQ(::listen(fd_.get(), backlog), 0);
  }
  base::Fd accept() { return base::Fd(::accept(fd_.get(), nullptr, nullptr)); }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&address_); }

  base::Fd fd_{socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  sockaddr_un address_{};
  socklen_t length_;
};

}  // namespace shardwise::testing

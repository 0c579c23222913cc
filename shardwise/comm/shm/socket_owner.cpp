#include "shardwise/comm/shm/socket_owner.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>
#include <string_view>

#include "shardwise/base/fd.h"
#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {
namespace {

constexpr timeval kPatience{1, 0};  // the kernel answers at once

/// Asks for the names and owners of all sockets that are not connected. Returns an empty Fd if it cannot.
base::Fd ask_for_sockets() {
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } message{};
  message.header.nlmsg_len = sizeof(message);
  message.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  message.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  message.request.sdiag_family = AF_UNIX;
  message.request.udiag_states = 1u << TCP_CLOSE | 1u << TCP_LISTEN;
  message.request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  base::Fd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  return send(socket.get(), &message, sizeof(message), 0) == sizeof(message) ? std::move(socket) : base::Fd();
}

/// The attributes of one socket. A name in the abstract namespace begins with a zero.
struct SocketAttributes {
  std::string_view name;
  std::optional<uid_t> user;
};

SocketAttributes attributes_of(nlmsghdr* message) {
  SocketAttributes result;
  auto* attribute =
      reinterpret_cast<rtattr*>(static_cast<char*>(NLMSG_DATA(message)) + NLMSG_ALIGN(sizeof(unix_diag_msg)));
  int left = int(message->nlmsg_len) - int(NLMSG_SPACE(sizeof(unix_diag_msg)));
  for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
    const auto* data = static_cast<const char*>(RTA_DATA(attribute));
    if (attribute->rta_type == UNIX_DIAG_NAME) result.name = {data, size_t(RTA_PAYLOAD(attribute))};
    if (attribute->rta_type == UNIX_DIAG_UID && RTA_PAYLOAD(attribute) == sizeof(uint32_t)) {
      uint32_t user;
      std::memcpy(&user, data, sizeof(user));
      result.user = user;
    }
  }
  return result;
}

}  // namespace

std::optional<uid_t> socket_owner(const std::string& job) {
  const std::string name = '\0' + socket_name(job);
  const base::Fd socket = ask_for_sockets();
  alignas(nlmsghdr) char answer[32 << 10];  // the kernel's largest message of a list
  for (;;) {
    ssize_t left = recv(socket.get(), answer, sizeof(answer), 0);
    auto* message = reinterpret_cast<nlmsghdr*>(answer);
    if (left <= 0) return std::nullopt;
    for (; NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type != SOCK_DIAG_BY_FAMILY)
        return std::nullopt;  // the end of the list, or an error
      const SocketAttributes found = attributes_of(message);
      if (found.name == name) return found.user;
    }
  }
}

}  // namespace shardwise::comm::shm

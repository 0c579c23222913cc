// The handshake message of a rendezvous, sent over a unix socket.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shardwise/comm/shm/introduction.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/rendezvous_socket.h"

namespace shardwise::comm::shm {
namespace {

constexpr size_t kMaxDescriptors = 2;

}  // namespace

int usable_cores(const std::vector<Handshake>& handshakes) {
  std::vector<PeerInfo> ranks;
  for (const Handshake& handshake : handshakes) {
    ranks.push_back(handshake.info.peer);
    ranks.back().machine = 0;  // they share memory, so also where a rank could not read its machine's id
  }
  return machine_share(ranks, /*machine=*/0).cores;
}

Handshake make_handshake(const ConnectOptions& options, const Region& region) {
  Handshake handshake;
  handshake.info = {{kMagic, MessageType::handshake},
                    local_peer_info(options.job, options.rank, options.size),
                    region.bytes(),
                    {}};
  handshake.region = Fd(fcntl(region.file(), F_DUPFD_CLOEXEC, 0));
  TORCH_CHECK(handshake.region, "shared memory: F_DUPFD; ", std::strerror(errno), " [SW0129]");
  handshake.pidfd = Fd(int(syscall(SYS_pidfd_open, getpid(), 0)));
  TORCH_CHECK(handshake.pidfd || (errno != EMFILE && errno != ENFILE), "shared memory: pidfd_open; ",
              std::strerror(errno), " [SW0130]");
  return handshake;
}

int send_handshake(const Fd& socket, const Handshake& handshake) {
  const int files[kMaxDescriptors] = {handshake.region.get(), handshake.pidfd.get()};
  const size_t bytes =
      sizeof(int) * size_t(std::count_if(files, files + kMaxDescriptors, [](int f) { return f >= 0; }));
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  iovec body{const_cast<Handshake::Bytes*>(&handshake.info), sizeof(handshake.info)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  if (bytes > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), files, bytes);
  }
  // A SEQPACKET message is sent completely or not at all.
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

ReceivedHandshake receive_handshake(const Fd& socket) {
  Handshake handshake;
  int files[kMaxDescriptors] = {-1, -1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  iovec body{&handshake.info, sizeof(handshake.info)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = receive_message(socket, message);
  const cmsghdr* header = received < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(files, CMSG_DATA(header), std::min(sizeof(files), header->cmsg_len - CMSG_LEN(0)));
  }
  handshake.region = Fd(files[0]);
  handshake.pidfd = Fd(files[1]);
  handshake.info.peer.end_names();
  using Kind = ReceivedHandshake::Kind;
  if (received <= 0) return {Kind::closed, {}};
  const Header& start = handshake.info.header;
  const bool is_of_us = received >= ssize_t(sizeof(start)) && is_ours(start.magic);
  if (is_of_us && start.type == MessageType::reject) return {Kind::reject, {}};
  const bool is_complete = received == ssize_t(sizeof(handshake.info)) && start.magic == kMagic;
  if (is_of_us && !is_complete) return {Kind::other_version, {}};
  if (is_complete && (message.msg_flags & MSG_CTRUNC) != 0)
    return {Kind::without_descriptors, std::move(handshake)};
  const bool is_handshake = is_complete && start.type == MessageType::handshake && handshake.region;
  return {is_handshake ? Kind::handshake : Kind::unknown, std::move(handshake)};
}

}  // namespace shardwise::comm::shm

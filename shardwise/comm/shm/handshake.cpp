// The handshake message of a rendezvous, sent over a unix socket.
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shardwise/comm/shm/rendezvous.h"

namespace shardwise::comm::shm {
namespace {

constexpr uint64_t kMagic =
    0x7368'6172'6477'6904;  // the last byte is the version of this message and of control.h
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
  handshake.info = {kMagic, local_peer_info(options.job, options.rank, options.size), region.bytes(), {}};
  handshake.info.peer.secret = options.secret;
  handshake.region = Fd(fcntl(region.file(), F_DUPFD_CLOEXEC, 0));
  TORCH_CHECK(handshake.region, "shared memory: F_DUPFD; ", std::strerror(errno), " [SW0129]");
  handshake.pidfd = Fd(int(syscall(SYS_pidfd_open, getpid(), 0)));
  TORCH_CHECK(handshake.pidfd || (errno != EMFILE && errno != ENFILE), "shared memory: pidfd_open; ",
              std::strerror(errno), " [SW0130]");
  return handshake;
}

Handshake make_reject(int reason) {
  Handshake handshake;
  handshake.info.magic = kMagic;
  handshake.info.peer.rank = reason;
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
  const int flags = handshake.is_reject() ? MSG_NOSIGNAL | MSG_DONTWAIT : MSG_NOSIGNAL;
  return sendmsg(socket.get(), &message, flags) < 0
             ? errno
             : 0;  // a SEQPACKET message is sent completely or not at all
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
  ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0 && errno == ECONNRESET)  // the peer closed with our bytes unread; its own message follows
    received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = received < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(files, CMSG_DATA(header), std::min(sizeof(files), header->cmsg_len - CMSG_LEN(0)));
  }
  handshake.region = Fd(files[0]);
  handshake.pidfd = Fd(files[1]);
  handshake.info.peer.end_names();
  using Kind = ReceivedHandshake::Kind;
  if (received <= 0) return {Kind::closed, {}};
  const bool is_ours = received >= ssize_t(sizeof(kMagic)) && handshake.info.magic >> 8 == kMagic >> 8;
  const bool is_complete = received == ssize_t(sizeof(handshake.info)) && handshake.info.magic == kMagic;
  if (is_ours && !is_complete) return {Kind::other_version, {}};
  if (is_complete && (message.msg_flags & MSG_CTRUNC) != 0)
    return {Kind::without_descriptors, std::move(handshake)};
  const bool is_handshake = is_complete && (handshake.region || handshake.is_reject());
  return {is_handshake ? Kind::handshake : Kind::unknown, std::move(handshake)};
}

}  // namespace shardwise::comm::shm

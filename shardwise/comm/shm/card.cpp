#include "shardwise/comm/shm/card.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shardwise::comm::shm {
namespace {

constexpr uint64_t kMagic = 0x7368'6172'6477'6902;  // the last byte is the version of the layout in control.h
constexpr size_t kMostFiles = 2;

uint64_t process_token() {
  static const uint64_t token = [] {
    uint64_t random = 0;
    return getrandom(&random, sizeof(random), 0) == sizeof(random) ? random : 0;
  }();
  return token + uint64_t(getpid());  // a forked child has the same static
}

}  // namespace

Card introduce(int rank, int size, const Region& region) {
  Card card;
  card.hello = {kMagic, rank, size, getpid(), process_token(), region.bytes(), {}, {}};
  sched_getaffinity(0, sizeof(cpu_set_t), &card.hello.cores);
  card.region = Fd(fcntl(region.file(), F_DUPFD_CLOEXEC, 0));
  TORCH_CHECK(card.region, "shared memory: F_DUPFD; ", std::strerror(errno));
  card.lifetime = Fd(int(syscall(SYS_pidfd_open, getpid(), 0)));
  TORCH_CHECK(card.lifetime || (errno != EMFILE && errno != ENFILE), "shared memory: pidfd_open; ",
              std::strerror(errno));
  return card;
}

Card refusal() {
  Card card;
  card.hello.magic = kMagic;
  card.hello.rank = -1;
  return card;
}

int send_card(const Fd& socket, const Card& card) {
  const int files[kMostFiles] = {card.region.get(), card.lifetime.get()};
  const size_t bytes =
      sizeof(int) * size_t(std::count_if(files, files + kMostFiles, [](int f) { return f >= 0; }));
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  iovec body{const_cast<Hello*>(&card.hello), sizeof(card.hello)};
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
  const int flags = card.is_refusal() ? MSG_NOSIGNAL | MSG_DONTWAIT : MSG_NOSIGNAL;
  return sendmsg(socket.get(), &message, flags) < 0 ? errno : 0;  // packets go whole or not at all
}

Received receive_card(const Fd& socket) {
  Card card;
  int files[kMostFiles] = {-1, -1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  iovec body{&card.hello, sizeof(card.hello)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0 && errno == ECONNRESET)  // it has closed with words of ours unread; its own come behind
    received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = received < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(files, CMSG_DATA(header), std::min(sizeof(files), header->cmsg_len - CMSG_LEN(0)));
  }
  card.region = Fd(files[0]);
  card.lifetime = Fd(files[1]);
  using As = Received::As;
  if (received <= 0) return {As::nothing, {}};
  const bool is_ours = received >= ssize_t(sizeof(kMagic)) && card.hello.magic >> 8 == kMagic >> 8;
  const bool is_hello = received == ssize_t(sizeof(card.hello)) && card.hello.magic == kMagic;
  if (is_ours && !is_hello) return {As::other_version, {}};
  if (is_hello && (message.msg_flags & MSG_CTRUNC) != 0) return {As::without_files, std::move(card)};
  const bool is_card = is_hello && (card.region || card.is_refusal());
  return {is_card ? As::card : As::something_else, std::move(card)};
}

}  // namespace shardwise::comm::shm

#include "shardwise/comm/shm/card.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
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
  card.lifetime = Fd(int(syscall(SYS_pidfd_open, getpid(), 0)));
  return card;
}

Card refusal() {
  Card card;
  card.hello.magic = kMagic;
  card.hello.rank = -1;
  return card;
}

bool send_card(const Fd& socket, const Card& card) {
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
  return sendmsg(socket.get(), &message, MSG_NOSIGNAL) == ssize_t(sizeof(card.hello));
}

std::optional<Card> receive_card(const Fd& socket) {
  Card card;
  int files[kMostFiles] = {-1, -1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(files))] = {};
  iovec body{&card.hello, sizeof(card.hello)};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = received < 0 ? nullptr : CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(files, CMSG_DATA(header), std::min(sizeof(files), header->cmsg_len - CMSG_LEN(0)));
  }
  card.region = Fd(files[0]);
  card.lifetime = Fd(files[1]);
  const bool is_card = received == ssize_t(sizeof(card.hello)) && card.hello.magic == kMagic;
  if (!is_card || !(card.region || card.is_refusal())) return std::nullopt;
  return card;
}

}  // namespace shardwise::comm::shm

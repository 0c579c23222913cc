#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "shardwise/comm/shm/rendezvous_socket.h"
#include "tests/fuzz/target.h"
#include "tests/support/temporary.h"

namespace shardwise::fuzz {
namespace {

using base::Fd;

constexpr std::chrono::milliseconds kTimeout{10'000};

/// Returns the descriptors that go with a message: its first byte chooses among good and bad ones.
std::vector<Fd> descriptors(unsigned choice) {
  std::vector<Fd> files;
  const auto memory = [&](size_t bytes) {
    files.emplace_back(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    hold(ftruncate(files.back().get(), off_t(bytes)) == 0, "the target can resize its own file");
    fcntl(files.back().get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  };
  if (choice % 4 == 1) memory(4096);
  if (choice % 4 == 2) memory(comm::shm::kHeapOffset + (1 << 21));
  if (choice % 4 == 3) files.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (choice % 8 >= 4 && !files.empty()) files.emplace_back(fcntl(files[0].get(), F_DUPFD_CLOEXEC, 0));
  if (choice % 16 >= 8) {  // more than a handshake has
    for (int more = 0; more < 3; ++more) files.emplace_back(open("/dev/null", O_RDWR | O_CLOEXEC));
  }
  return files;
}

void send_message(const Fd& socket, std::string message, const std::vector<Fd>& files) {
  iovec body{message.data(), message.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &body;
  header.msg_iovlen = 1;
  if (!files.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    for (size_t i = 0; i < files.size(); ++i) reinterpret_cast<int*>(CMSG_DATA(rights))[i] = files[i].get();
  }
  sendmsg(socket.get(), &header, MSG_NOSIGNAL);
}

/// What a rank does with the message that a stranger, or a rank of another version, sends it.
void take_message(const Fd& socket) {
  const comm::ConnectDeadline deadline(/*rank=*/0, kTimeout);
  auto handshake = comm::shm::receive_from(socket, /*sender=*/-1, deadline);
  if (!handshake || handshake->is_reject()) return;
  const comm::PeerInfo& peer = handshake->info.peer;
  hold(peer.address().size() < 200, "an address is short");
  const comm::PeerInfo self = comm::local_peer_info("group", /*rank=*/0, /*size=*/2);
  const std::string why = comm::disagreement(self, peer);
  if (why.empty()) hold(peer.rank == 0 || peer.rank == 1, "a rank is in its group");
  hold(why.size() < 400, "a reason is short");
  const auto region = comm::shm::Region::map(std::move(handshake->region), handshake->info.region_bytes);
  hold(region.control().identity == 0, "the control block of an empty region can be read");
}

void receive(const std::string& path) {
  const std::string input = test::contents(path);
  int ends[2];
  hold(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "the target has a socket");
  const Fd ours(ends[0]);
  Fd theirs(ends[1]);
  if (!input.empty())
    send_message(theirs, input.substr(1), descriptors(static_cast<unsigned char>(input[0])));
  theirs = Fd();
  take_message(ours);
}

}  // namespace

std::vector<Target> rendezvous_targets() {
  return {{"rendezvous", "message", &Mutator::raw, receive}};
}

}  // namespace shardwise::fuzz

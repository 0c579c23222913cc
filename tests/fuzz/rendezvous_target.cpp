#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <string_view>

#include "shardwise/comm/shm/rendezvous_socket.h"
#include "shardwise/comm/shm/visitor.h"
#include "tests/fuzz/target.h"
#include "tests/support/temporary.h"

namespace shardwise::fuzz {
namespace {

using base::Fd;

constexpr std::chrono::milliseconds kTimeout{10'000};

/// Returns the descriptors that go with a message: the input's first byte chooses among good and bad ones.
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
  sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);  // without room the message is lost
}

/// What an input consists of: a byte of choices, then messages, each after its length in two bytes.
struct Conversation {
  enum class With { visitor, rank_0, proven_rank_0 };

  explicit Conversation(const std::string& input) {
    const std::string_view text = input;
    choices = text.empty() ? 0 : static_cast<unsigned char>(text[0]);
    for (size_t at = 1; at + 2 <= text.size();) {
      const size_t length = static_cast<unsigned char>(text[at]) | static_cast<unsigned char>(text[at + 1])
                                                                       << 8;
      messages.emplace_back(text.substr(at + 2, length));
      at += 2 + length;
    }
  }
  With with() const { return With(choices / 16 % 4 % 3); }
  /// Whether the stranger knows the secret: its proof, whatever the message says, is right.
  bool knows_secret() const { return choices >= 64; }

  unsigned choices;
  std::vector<std::string> messages;
};

const std::string kGroup = "group";
constexpr base::Secret kSecret{{1, 2}};

comm::shm::ConnectOptions options_of(int rank) {
  comm::shm::ConnectOptions options(kGroup, rank, /*size=*/2);
  options.secret = kSecret;
  return options;
}

/// What rank 0 does with the handshake of a process that knows the secret, which may be of another job.
void take_handshake(comm::shm::Handshake handshake) {
  const comm::PeerInfo& peer = handshake.info.peer;
  hold(peer.address().size() < 200, "an address is short");
  const comm::PeerInfo self = comm::local_peer_info(kGroup, /*rank=*/0, /*size=*/2);
  const std::string why = comm::disagreement(self, peer);
  if (why.empty()) hold(peer.rank == 0 || peer.rank == 1, "a rank is in its group");
  hold(why.size() < 400, "a reason is short");
  const auto region = comm::shm::Region::map(std::move(handshake.region), handshake.info.region_bytes);
  hold(region.control().identity == 0, "the control block of an empty region can be read");
}

/// Replaces the proof in `message`, if it is one, by the right one.
void prove(std::string& message, const comm::shm::Connection& connection, const comm::shm::Nonce& rank,
           const comm::shm::Nonce& rank_0) {
  comm::shm::Introduction proof;
  if (message.size() != sizeof(proof)) return;
  std::memcpy(&proof, message.data(), sizeof(proof));
  proof.proof = connection.proof(comm::shm::Connection::Role::other_rank, rank, rank_0);
  std::memcpy(message.data(), &proof, sizeof(proof));
}

/// Rank 0's side: reads the messages of a visitor until it is dropped or its handshake has arrived.
void visit_rank_0(Conversation conversation, Fd ours, const Fd& theirs) {
  using comm::shm::Visitor;
  const comm::ConnectDeadline deadline(/*rank=*/0, kTimeout);
  const auto connection = comm::shm::Connection::at_rank(theirs, kGroup, kSecret);
  Visitor visitor(std::move(ours), options_of(0));
  comm::shm::Nonce rank{}, rank_0{};
  bool has_proven = false;
  for (std::string& message : conversation.messages) {
    const bool is_second = &message == &conversation.messages[0] + 1;
    if (conversation.knows_secret() && is_second) prove(message, connection, rank, rank_0);
    if (message.size() >= sizeof(comm::shm::Introduction))
      std::memcpy(&rank, message.data() + sizeof(comm::shm::Header), sizeof(rank));
    send_message(theirs, message, descriptors(conversation.choices));
    const Visitor::Outcome outcome = visitor.read(deadline);
    if (outcome == Visitor::Outcome::handshake) {
      hold(has_proven, "a handshake comes after a right proof");
      return take_handshake(visitor.take_handshake());
    }
    if (outcome != Visitor::Outcome::waits) return;
    has_proven = is_second && conversation.knows_secret();
    if (!has_proven) rank_0 = comm::shm::receive_introduction(theirs).message->nonce;
  }
}

/// A rank's side: reads the answer of a process that poses as rank 0, or the messages of rank 0.
void answer_rank(const Conversation& conversation, const Fd& ours, Fd theirs) {
  const comm::ConnectDeadline deadline(/*rank=*/1, kTimeout);
  for (const std::string& message : conversation.messages)
    send_message(theirs, message, descriptors(conversation.choices));
  theirs = Fd();
  if (conversation.with() == Conversation::With::rank_0) {
    hold(!comm::shm::introduce(ours, options_of(1), deadline), "nobody guesses a proof");
    return;
  }
  while (auto handshake = comm::shm::receive_from(ours, /*sender=*/0, deadline))
    take_handshake(std::move(*handshake));
}

void receive(const std::string& path) {
  const Conversation conversation(test::contents(path));
  int ends[2];
  hold(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "the target has a socket");
  Fd ours(ends[0]), theirs(ends[1]);
  if (conversation.with() == Conversation::With::visitor) {
    visit_rank_0(conversation, std::move(ours), theirs);
  } else {
    answer_rank(conversation, ours, std::move(theirs));
  }
}

}  // namespace

std::vector<Target> rendezvous_targets() {
  return {{"rendezvous", "messages", &Mutator::raw, receive}};
}

}  // namespace shardwise::fuzz

#include "shardwise/comm/shm/rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>

#include "shardwise/base/error.h"
#include "shardwise/comm/shm/card.h"

namespace shardwise::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

struct Deadline {
  const Options& options;
  Clock::time_point start = Clock::now();

  // As poll takes it: 24 days at most, of a timeout that may be longer.
  int left_ms() const {
    const auto left =
        options.timeout - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
    return int(std::clamp<int64_t>(left.count(), 0, INT_MAX));
  }
  [[noreturn]] void fail(int peer, const std::string& what) const {
    const std::chrono::duration<double> elapsed = Clock::now() - start, limit = options.timeout;
    throw base::CommError({"connect", options.rank, peer, 0, elapsed.count(), limit.count()}, what);
  }
};

struct Address {
  sockaddr_un socket{};
  socklen_t length;

  explicit Address(const std::string& job) {
    const size_t hash = std::hash<std::string>()(job);  // a long job's name is cut, its hash is not
    const std::string name = fmt::format("shardwise/{}/{:016x}/{:.48}", getuid(), hash, job);
    socket.sun_family = AF_UNIX;
    std::memcpy(socket.sun_path + 1, name.data(), name.size());  // a leading zero makes it abstract
    length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }
};

Fd new_socket(const Deadline& deadline) {
  Fd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made) deadline.fail(-1, fmt::format("cannot make a socket; {}", std::strerror(errno)));
  return made;
}

bool same_user(const Fd& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == getuid();
}

bool readable(const Fd& socket) {
  pollfd wanted{socket.get(), POLLIN, 0};
  return poll(&wanted, 1, 0) == 1;
}

/// Whether it has become so in time.
bool readable(const Fd& socket, const Deadline& deadline) {
  pollfd wanted{socket.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&wanted, 1, deadline.left_ms());
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

/// Connecting and sending wait for room at the other side: no longer than until the deadline.
void limit_waits(const Fd& socket, const Deadline& deadline) {
  const int ms = std::max(1, deadline.left_ms());  // 0 would be no limit
  const timeval left{ms / 1000, ms % 1000 * 1000L};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
}

/// False when the other side has closed the socket. Descriptors of others of this user that are under way may
/// leave no room for ours: those are taken out in time.
bool send_to(const Fd& socket, const Card& card, int rank, const Deadline& deadline) {
  limit_waits(socket, deadline);
  int error = send_card(socket, card);
  while ((error == ETOOMANYREFS || error == EINTR) && deadline.left_ms() > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    error = send_card(socket, card);
  }
  const bool has_left = error == EPIPE || error == ECONNRESET;
  if (error != 0 && !has_left)
    deadline.fail(rank, fmt::format("cannot send to rank {}; {}", rank,
                                    std::strerror(error == EAGAIN ? ETIMEDOUT : error)));
  return error == 0;
}

/// Empty when the other side has closed the socket, or is a stranger who visits. `sender` is -1 where it is
/// not known yet.
std::optional<Card> receive_from(const Fd& socket, int sender, const Deadline& deadline) {
  using As = Received::As;
  Received received = receive_card(socket);
  if (received.as == As::other_version) deadline.fail(sender, "ranks of two versions of this program meet");
  if (received.as == As::something_else && sender == 0)
    deadline.fail(sender, "another program answers for rank 0");
  if (received.as == As::without_files) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int rank = received.card.hello.rank;
    deadline.fail(-1, fmt::format("no descriptors left for the memory of rank {}; got {} by `ulimit -n`",
                                  rank, limit.rlim_cur));
  }
  if (received.as != As::card) return std::nullopt;
  return std::move(received.card);
}

int usable_cores(const std::vector<Card>& cards) {
  cpu_set_t together{};
  for (const Card& card : cards) CPU_OR(&together, &together, &card.hello.cores);
  return std::max(1, CPU_COUNT(&together));
}

OneShotLimit choose_one_shot(const Options& options, int cores) {
  const RanksOnCores on{options.size, options.size <= cores};
  if (options.one_shot_bytes) return {on, *options.one_shot_bytes, OneShotLimit::From::given};
  return one_shot_limit(on);
}

/// Rank 0: waits for the cards of all others, then sends all of them to everybody.
class Host {
 public:
  Host(const Options& options, Card own)
      : options_(options), deadline_{options}, cards_(size_t(options.size)), sockets_(size_t(options.size)) {
    cards_[0] = std::move(own);
  }
  std::vector<Card> run() {
    try {
      listen_to_job();
      for (int come = 1; come < options_.size; newcomer_ = Fd()) come += receive_one();
      std::vector<Card> cards;
      for (std::optional<Card>& card : cards_) cards.push_back(std::move(*card));
      cards[0].hello.one_shot = choose_one_shot(options_, usable_cores(cards));
      send_all(cards);
      return cards;
    } catch (...) {
      refuse_all();
      throw;
    }
  }

 private:
  void listen_to_job();
  int receive_one();
  void send_all(const std::vector<Card>& cards);
  void refuse_all();
  std::string missing() const;

  const Options& options_;
  Deadline deadline_;
  Fd listener_ = new_socket(deadline_);
  std::vector<std::optional<Card>> cards_;
  std::vector<Fd> sockets_;
  Fd newcomer_;  // whose rank is not known yet
};

// A second rank 0 of the same job waits here for the first one's meeting to end.
void Host::listen_to_job() {
  const Address address(options_.job);
  while (bind(listener_.get(), address.get(), address.length) != 0) {
    if (errno != EADDRINUSE)
      deadline_.fail(-1, fmt::format("cannot bind a socket; {}", std::strerror(errno)));
    if (deadline_.left_ms() == 0)
      deadline_.fail(0, fmt::format("another rank 0 of job {} is meeting", options_.job));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (listen(listener_.get(), options_.size) != 0) deadline_.fail(-1, "cannot listen on a socket");
}

// Returns how many ranks have come: a stranger, or a rank that died at once, is none.
int Host::receive_one() {
  if (!readable(listener_, deadline_)) deadline_.fail(-1, "did not come: rank " + missing());
  newcomer_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!newcomer_ && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
    deadline_.fail(-1, fmt::format("cannot accept a socket; {}", std::strerror(errno)));
  if (!newcomer_ || !same_user(newcomer_) || !readable(newcomer_, deadline_)) return 0;
  std::optional<Card> card = receive_from(newcomer_, /*sender=*/-1, deadline_);
  if (!card || card->is_refusal()) return 0;
  const int rank = card->hello.rank, size = card->hello.size;
  if (size != options_.size || rank < 1 || rank >= size || cards_[size_t(rank)]) {
    deadline_.fail(rank, fmt::format("rank {} of {} came to a job of {} ranks{}", rank, size, options_.size,
                                     size == options_.size ? ", where that rank is taken" : ""));
  }
  sockets_[size_t(rank)] = std::move(newcomer_);
  cards_[size_t(rank)] = std::move(card);
  return 1;
}

void Host::send_all(const std::vector<Card>& cards) {
  for (int rank = 1; rank < options_.size; ++rank) {
    for (const Card& card : cards) {
      if (send_to(sockets_[size_t(rank)], card, rank, deadline_)) continue;
      deadline_.fail(rank, fmt::format("rank {} left before all ranks had come", rank));
    }
  }
}

// Those who wait to be let in too: what our cards have held serves to accept them where descriptors are
// short.
void Host::refuse_all() {
  for (const Fd& socket : sockets_) send_card(socket, refusal());
  send_card(newcomer_, refusal());
  newcomer_ = Fd();
  cards_.clear();
  while (readable(listener_)) {
    const Fd waiting(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!waiting) break;
    send_card(waiting, refusal());
  }
}

std::string Host::missing() const {
  std::string ranks;
  for (size_t rank = 1; rank < cards_.size(); ++rank) {
    if (!cards_[rank]) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

Fd connect_to_host(const Options& options, const Deadline& deadline) {
  const Address address(options.job);
  Fd socket = new_socket(deadline);
  auto pause = std::chrono::microseconds(100);
  const auto is_connected = [&] {
    limit_waits(socket, deadline);
    return connect(socket.get(), address.get(), address.length) == 0;
  };
  while (!is_connected()) {
    const bool may_come = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
    if (!may_come) deadline.fail(0, fmt::format("cannot connect a socket; {}", std::strerror(errno)));
    if (deadline.left_ms() == 0) deadline.fail(0, "rank 0 did not come");
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(20'000));
  }
  if (!same_user(socket)) deadline.fail(0, "the socket of this job belongs to another user");
  return socket;
}

// A socket that closes without a card was that of an earlier meeting of the same job, or rank 0 has died: try
// again.
std::vector<Card> visit_host(const Options& options, const Card& own) {
  const Deadline deadline{options};
  std::vector<Card> cards;
  Fd socket;
  while (int(cards.size()) < options.size) {
    if (cards.empty()) {
      socket = connect_to_host(options, deadline);
      send_to(socket, own, 0, deadline);  // it may be closed: then there is nothing to read either
    }
    if (!readable(socket, deadline)) deadline.fail(-1, "not all ranks came");
    std::optional<Card> card = receive_from(socket, /*sender=*/0, deadline);
    if (card && card->is_refusal()) deadline.fail(0, "rank 0 gave up the meeting");
    if (card) {
      cards.push_back(std::move(*card));
    } else if (!cards.empty()) {
      deadline.fail(0, "rank 0 died during the meeting");
    }
  }
  return cards;
}

/// A peer's region, mapped, its file closed.
Member mapped(Card peer, const Hello& self) {
  Region region = Region::map(std::move(peer.region), peer.hello.region_bytes);
  region.close_file();
  const bool same_process = peer.hello.process == self.process && peer.hello.pid == self.pid;
  return {std::move(region), peer.hello.pid, same_process ? Fd() : std::move(peer.lifetime)};
}

/// The meeting's members but this rank, in order.
std::vector<Member> map_peers(std::vector<Card> cards, int own_rank, const Hello& self) {
  std::vector<Member> peers;
  for (int rank = 0; rank < int(cards.size()); ++rank) {
    if (rank != own_rank) peers.push_back(mapped(std::move(cards[size_t(rank)]), self));
  }
  return peers;
}

}  // namespace

void check_options(const Options& options) {
  TORCH_CHECK_VALUE(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
                    "connect: rank must be in [0, size); got rank ", options.rank, " of ", options.size);
  TORCH_CHECK_VALUE(options.size <= kMostRanks, "connect: shared memory joins at most ", kMostRanks,
                    " ranks; got ", options.size);
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "connect: a timeout must be above 0 ms; got ",
                    options.timeout.count());
  const int64_t one_shot_bytes = options.one_shot_bytes.value_or(0);
  TORCH_CHECK_VALUE(one_shot_bytes >= 0 && one_shot_bytes <= int64_t(kInlineBytes),
                    "connect: one_shot_bytes must be from 0 to ", kInlineBytes, "; got ", one_shot_bytes);
}

Meeting meet(const Options& options) {
  Region own = Region::create(options.size);
  Card card = introduce(options.rank, options.size, own);
  const Hello self = card.hello;
  Meeting meeting;
  std::vector<Member> peers;
  try {
    std::vector<Card> cards =
        options.rank == 0 ? Host(options, std::move(card)).run() : visit_host(options, card);
    meeting.cores = usable_cores(cards);
    meeting.one_shot = cards[0].hello.one_shot;
    peers = map_peers(std::move(cards), options.rank, self);
  } catch (const std::exception& error) {
    // The others may hold the group already; who waits looks up soon enough.
    const auto* failure = dynamic_cast<const base::CommError*>(&error);
    const bool is_own = failure == nullptr || failure->where().peer < 0;
    own.control().abort.set_once(is_own ? options.rank : failure->where().peer,
                                 fmt::format("rank {} aborted: {}", options.rank, base::one_line(error)));
    throw;
  }
  const auto behind = peers.begin() + options.rank;
  std::move(peers.begin(), behind, std::back_inserter(meeting.members));
  meeting.members.push_back({std::move(own), self.pid, Fd()});
  std::move(behind, peers.end(), std::back_inserter(meeting.members));
  return meeting;
}

}  // namespace shardwise::comm::shm

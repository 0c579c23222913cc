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
#include "shardwise/base/hash.h"

namespace shardwise::comm::shm {
namespace {

/// Returns the time left for poll, in its int milliseconds: at most 24 days, though the timeout may be
/// longer.
int left_ms(const ConnectDeadline& deadline) {
  return int(std::min<int64_t>(deadline.left().count(), INT_MAX));
}

struct Address {
  sockaddr_un socket{};
  socklen_t length;

  explicit Address(const std::string& job) {
    const uint64_t hash = base::hash_of(job);  // a long job name is truncated, its hash is not
    const std::string name = fmt::format("shardwise/{}/{:016x}/{:.48}", getuid(), hash, job);
    socket.sun_family = AF_UNIX;
    std::memcpy(socket.sun_path + 1, name.data(), name.size());  // a leading zero makes it abstract
    length = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket); }
};

Fd new_socket(const ConnectDeadline& deadline) {
  Fd result(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!result) deadline.fail(-1, fmt::format("cannot create a socket; {} [SW0334]", std::strerror(errno)));
  return result;
}

bool same_user(const Fd& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == getuid();
}

bool readable(const Fd& socket) {
  pollfd request{socket.get(), POLLIN, 0};
  return poll(&request, 1, 0) == 1;
}

/// Waits until `socket` is readable. Returns false at the deadline.
bool readable(const Fd& socket, const ConnectDeadline& deadline) {
  pollfd request{socket.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&request, 1, left_ms(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

/// Limits connect and send, which wait for room at the peer, to the deadline.
void limit_waits(const Fd& socket, const ConnectDeadline& deadline) {
  const int ms = std::max(1, left_ms(deadline));  // 0 would mean no limit
  const timeval left{ms / 1000, ms % 1000 * 1000L};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
}

/// Returns false if the peer closed the socket. Retries while other in-flight descriptors of this user leave
/// no room for ours.
bool send_to(const Fd& socket, const Handshake& handshake, int rank, const ConnectDeadline& deadline) {
  limit_waits(socket, deadline);
  int error = send_handshake(socket, handshake);
  while ((error == ETOOMANYREFS || error == EINTR) && !deadline.is_over()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    error = send_handshake(socket, handshake);
  }
  const bool is_closed = error == EPIPE || error == ECONNRESET;
  if (error != 0 && !is_closed)
    deadline.fail(rank, fmt::format("cannot send to rank {}; {} [SW0332]", rank,
                                    std::strerror(error == EAGAIN ? ETIMEDOUT : error)));
  return error == 0;
}

/// Returns nullopt if the peer closed the socket or is not one of our processes. `sender` is -1 if its rank
/// is not known yet.
std::optional<Handshake> receive_from(const Fd& socket, int sender, const ConnectDeadline& deadline) {
  using Kind = ReceivedHandshake::Kind;
  ReceivedHandshake received = receive_handshake(socket);
  if (received.kind == Kind::other_version)
    deadline.fail(sender, "the ranks run different versions of this program [SW0336]");
  if (received.kind == Kind::unknown && sender == 0)
    deadline.fail(sender, "another program answered at the socket of rank 0 [SW0337]");
  if (received.kind == Kind::without_descriptors) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int rank = received.handshake.info.peer.rank;
    deadline.fail(
        -1, fmt::format(
                "no descriptors left for the memory of rank {}; got a limit of {} by `ulimit -n` [SW0331]",
                rank, limit.rlim_cur));
  }
  if (received.kind != Kind::handshake) return std::nullopt;
  return std::move(received.handshake);
}

/// Returns the number of cores that at least one of the ranks may run on.
int usable_cores(const std::vector<Handshake>& handshakes) {
  std::vector<PeerInfo> ranks;
  for (const Handshake& handshake : handshakes) {
    ranks.push_back(handshake.info.peer);
    ranks.back().machine = 0;  // they share memory, so also where a rank could not read its machine's id
  }
  return machine_share(ranks, /*machine=*/0).cores;
}

OneShotLimit choose_one_shot(const ConnectOptions& options, int cores) {
  const RanksOnCores on{options.size, options.size <= cores};
  if (options.one_shot_bytes) return {on, *options.one_shot_bytes, OneShotLimit::From::given};
  return one_shot_limit(on);
}

/// Rank 0: receives the handshakes of all other ranks, then sends all of them to every rank.
class Coordinator {
 public:
  Coordinator(const ConnectOptions& options, Handshake local)
      : options_(options),
        deadline_(options.rank, options.timeout),
        handshakes_(size_t(options.size)),
        sockets_(size_t(options.size)) {
    handshakes_[0] = std::move(local);
  }
  std::vector<Handshake> run() {
    try {
      listen_to_job();
      for (int connected = 1; connected < options_.size; accepted_ = Fd()) connected += accept_one();
      std::vector<Handshake> handshakes;
      for (std::optional<Handshake>& handshake : handshakes_) handshakes.push_back(std::move(*handshake));
      handshakes[0].info.one_shot = choose_one_shot(options_, usable_cores(handshakes));
      send_all(handshakes);
      return handshakes;
    } catch (...) {
      reject_all();
      throw;
    }
  }

 private:
  void listen_to_job();
  int accept_one();
  void send_all(const std::vector<Handshake>& handshakes);
  void reject_all();
  std::string missing() const;

  const ConnectOptions& options_;
  ConnectDeadline deadline_;
  Fd listener_ = new_socket(deadline_);
  std::vector<std::optional<Handshake>> handshakes_;
  std::vector<Fd> sockets_;
  Fd accepted_;  // a connection whose rank is not known yet
};

// A second rank 0 of the same job waits here until the first one's rendezvous ends.
void Coordinator::listen_to_job() {
  const Address address(options_.job);
  while (bind(listener_.get(), address.get(), address.length) != 0) {
    if (errno != EADDRINUSE)
      deadline_.fail(-1, fmt::format("cannot bind a socket; {} [SW0341]", std::strerror(errno)));
    if (deadline_.is_over())
      deadline_.fail(0, fmt::format("another rank 0 of job {} is in a rendezvous [SW0329]", options_.job));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (listen(listener_.get(), options_.size) != 0) deadline_.fail(-1, "cannot listen on a socket [SW0342]");
}

// Returns the number of ranks that connected: 0 if the peer is another program or exited at once, else 1.
int Coordinator::accept_one() {
  if (!readable(listener_, deadline_))
    deadline_.fail(-1, "timed out waiting for ranks: " + missing() + " [SW0324]");
  accepted_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted_ && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
    deadline_.fail(-1, fmt::format("cannot accept a socket; {} [SW0333]", std::strerror(errno)));
  if (!accepted_ || !same_user(accepted_) || !readable(accepted_, deadline_)) return 0;
  std::optional<Handshake> handshake = receive_from(accepted_, /*sender=*/-1, deadline_);
  if (!handshake || handshake->is_reject()) return 0;
  const PeerInfo& peer = handshake->info.peer;
  const int rank = peer.rank;
  const std::string why = disagreement(handshakes_[0]->info.peer, peer);
  if (!why.empty()) deadline_.fail(rank, why);
  if (handshakes_[size_t(rank)]) {
    deadline_.fail(
        rank,
        fmt::format("rank {} connected to a job of {} ranks, where that rank is already connected [SW0328]",
                    rank, options_.size));
  }
  sockets_[size_t(rank)] = std::move(accepted_);
  handshakes_[size_t(rank)] = std::move(handshake);
  return 1;
}

void Coordinator::send_all(const std::vector<Handshake>& handshakes) {
  for (int rank = 1; rank < options_.size; ++rank) {
    for (const Handshake& handshake : handshakes) {
      if (send_to(sockets_[size_t(rank)], handshake, rank, deadline_)) continue;
      deadline_.fail(rank, fmt::format("rank {} disconnected before all ranks had connected [SW0330]", rank));
    }
  }
}

// Rejects ranks in the listen backlog, too. Dropping our handshakes frees the descriptors to accept them when
// descriptors are short.
void Coordinator::reject_all() {
  for (const Fd& socket : sockets_) send_handshake(socket, make_reject());
  send_handshake(accepted_, make_reject());
  accepted_ = Fd();
  handshakes_.clear();
  while (readable(listener_)) {
    const Fd queued(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!queued) break;
    send_handshake(queued, make_reject());
  }
}

std::string Coordinator::missing() const {
  std::string ranks;
  for (size_t rank = 1; rank < handshakes_.size(); ++rank) {
    if (!handshakes_[rank]) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

Fd connect_to_coordinator(const ConnectOptions& options, const ConnectDeadline& deadline) {
  const Address address(options.job);
  Fd socket = new_socket(deadline);
  auto pause = std::chrono::microseconds(100);
  const auto is_connected = [&] {
    limit_waits(socket, deadline);
    return connect(socket.get(), address.get(), address.length) == 0;
  };
  while (!is_connected()) {
    const bool may_retry = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
    if (!may_retry)
      deadline.fail(0, fmt::format("cannot connect a socket; {} [SW0335]", std::strerror(errno)));
    if (deadline.is_over()) deadline.fail_missing(0);
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(20'000));
  }
  if (!same_user(socket)) deadline.fail(0, "the socket of this job belongs to another user [SW0340]");
  return socket;
}

// Retries if the socket closes before the first handshake: it belonged to an earlier rendezvous of the same
// job, or rank 0 has exited.
std::vector<Handshake> exchange_with_coordinator(const ConnectOptions& options, const Handshake& local) {
  const ConnectDeadline deadline(options.rank, options.timeout);
  std::vector<Handshake> handshakes;
  Fd socket;
  while (int(handshakes.size()) < options.size) {
    if (handshakes.empty()) {
      socket = connect_to_coordinator(options, deadline);
      send_to(socket, local, 0, deadline);  // if the socket is closed, receive_from finds out
    }
    if (!readable(socket, deadline)) deadline.fail(-1, "timed out before all ranks had connected [SW0326]");
    std::optional<Handshake> handshake = receive_from(socket, /*sender=*/0, deadline);
    if (handshake && handshake->is_reject()) deadline.fail(0, "rank 0 aborted the rendezvous [SW0338]");
    if (handshake) {
      handshakes.push_back(std::move(*handshake));
    } else if (!handshakes.empty()) {
      deadline.fail(0, "rank 0 exited during the rendezvous [SW0339]");
    }
  }
  return handshakes;
}

/// Maps a peer's region and closes its file.
Member mapped(Handshake peer, const PeerInfo& self) {
  Region region = Region::map(std::move(peer.region), peer.info.region_bytes);
  region.close_file();
  const bool is_thread = peer.info.peer.is_same_process(self);
  return {std::move(region), peer.info.peer.pid, is_thread ? Fd() : std::move(peer.pidfd)};
}

/// Returns all members but this rank, in rank order.
std::vector<Member> map_peers(std::vector<Handshake> handshakes, int local_rank, const PeerInfo& self) {
  std::vector<Member> peers;
  for (int rank = 0; rank < int(handshakes.size()); ++rank) {
    if (rank != local_rank) peers.push_back(mapped(std::move(handshakes[size_t(rank)]), self));
  }
  return peers;
}

/// Sets this rank's abort word, because peers may already be in the group: their next wait fails. A `peer`
/// below 0 blames this rank.
void abort_region(const Region& region, const ConnectOptions& options, int peer, const std::string& reason) {
  region.control().abort.set_once(peer < 0 ? options.rank : peer,
                                  fmt::format("rank {} aborted: {} [SW0345]", options.rank, reason));
}

}  // namespace

void check_options(const ConnectOptions& options) {
  TORCH_CHECK_VALUE(options.size >= 1 && options.rank >= 0 && options.rank < options.size,
                    "connect: rank must be in [0, size); got rank ", options.rank, " of ", options.size,
                    " [SW0299]");
  TORCH_CHECK_VALUE(options.size <= kMaxRanks, "connect: a shared-memory group must have at most ", kMaxRanks,
                    " ranks; got ", options.size, " [SW0133]");
  TORCH_CHECK_VALUE(options.timeout.count() > 0, "connect: timeout must be above 0 ms; got ",
                    options.timeout.count(), " [SW0298]");
  const int64_t one_shot_bytes = options.one_shot_bytes.value_or(0);
  TORCH_CHECK_VALUE(one_shot_bytes >= 0 && one_shot_bytes <= int64_t(kInlineBytes),
                    "connect: one_shot_bytes must be from 0 to ", kInlineBytes, "; got ", one_shot_bytes,
                    " [SW0300]");
}

Rendezvous rendezvous(const ConnectOptions& options) {
  Region region = Region::create(options.size);
  Handshake handshake = make_handshake(options.job, options.rank, options.size, region);
  const PeerInfo self = handshake.info.peer;
  Rendezvous result;
  std::vector<Member> peers;
  try {
    std::vector<Handshake> handshakes = options.rank == 0 ? Coordinator(options, std::move(handshake)).run()
                                                          : exchange_with_coordinator(options, handshake);
    result.cores = usable_cores(handshakes);
    result.one_shot = handshakes[0].info.one_shot;
    peers = map_peers(std::move(handshakes), options.rank, self);
  } catch (const base::CommError& error) {
    abort_region(region, options, error.where().peer, base::one_line(error));
    throw;
  } catch (const std::exception& error) {
    abort_region(region, options, /*peer=*/-1, base::one_line(error));
    throw;
  }
  const auto above = peers.begin() + options.rank;
  std::move(peers.begin(), above, std::back_inserter(result.members));
  result.members.push_back({std::move(region), self.pid, Fd()});
  std::move(above, peers.end(), std::back_inserter(result.members));
  return result;
}

}  // namespace shardwise::comm::shm

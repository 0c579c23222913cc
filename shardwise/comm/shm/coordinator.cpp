#include "shardwise/comm/shm/coordinator.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "shardwise/comm/shm/rendezvous_socket.h"
#include "shardwise/comm/shm/socket_owner.h"

namespace shardwise::comm::shm {
namespace {

constexpr size_t kMaxVisitors = 64;  // beyond the ranks; the oldest is dropped

OneShotLimit choose_one_shot(const ConnectOptions& options, int cores) {
  const RanksOnCores on{options.size, options.size <= cores};
  if (options.one_shot_bytes) return {on, *options.one_shot_bytes, OneShotLimit::From::given};
  return one_shot_limit(on);
}

bool is_readable(const Fd& socket) {
  pollfd request{socket.get(), POLLIN, 0};
  return poll(&request, 1, 0) == 1;
}

}  // namespace

Coordinator::Coordinator(const ConnectOptions& options, Handshake local)
    : options_(options),
      deadline_(options.rank, options.timeout),
      listener_(new_socket(deadline_)),
      handshakes_(size_t(options.size)),
      sockets_(size_t(options.size)) {
  handshakes_[0] = std::move(local);
}

std::vector<Handshake> Coordinator::run() {
  try {
    listen_to_job();
    while (connected_ < options_.size) wait_for_event();
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

// A second rank 0 of the same job waits here until the first one's rendezvous ends.
void Coordinator::listen_to_job() {
  constexpr int kTriesPerCheck = 100;
  const SocketAddress address(options_.job);
  for (int tries = 0; bind(listener_.get(), address.get(), address.length) != 0; ++tries) {
    if (errno != EADDRINUSE) fail_to_bind(deadline_);
    if (tries % kTriesPerCheck == 0) check_other_owner();
    if (deadline_.is_over())
      deadline_.fail(0, fmt::format("another rank 0 of job {} is in a rendezvous [SW0329]", options_.job));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (listen(listener_.get(), options_.size) != 0) deadline_.fail(-1, "cannot listen on a socket [SW0342]");
}

/// Fails if another user has the job's socket. Where the kernel does not list it, only one who listens can be
/// asked.
void Coordinator::check_other_owner() const {
  check_owner(socket_owner(options_.job), deadline_);
  const Fd socket = new_socket(deadline_);
  const SocketAddress address(options_.job);
  limit_waits(socket, deadline_);
  if (connect(socket.get(), address.get(), address.length) == 0) check_owner(peer_user(socket), deadline_);
}

/// Waits until a visitor says something, or else until there is a new one.
void Coordinator::wait_for_event() {
  std::vector<pollfd> events;
  for (const Visitor& visitor : visitors_) events.push_back({visitor.socket().get(), POLLIN, 0});
  events.push_back({listener_.get(), POLLIN, 0});
  const int ready = poll(events.data(), events.size(), left_ms(deadline_));
  if (ready < 0 && errno == EINTR) return;
  if (ready <= 0) deadline_.fail(-1, "timed out waiting for ranks: " + missing() + dropped() + " [SW0324]");
  for (size_t i = 0; i < visitors_.size(); ++i) {
    if (events[i].revents != 0) return read_visitor(i);
  }
  accept_visitor();
}

void Coordinator::accept_visitor() {
  Fd visitor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!visitor && errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
    deadline_.fail(-1, fmt::format("cannot accept a socket; {} [SW0333]", std::strerror(errno)));
  if (!visitor || peer_user(visitor) != getuid()) return;
  if (visitors_.size() == size_t(options_.size) + kMaxVisitors) visitors_.erase(visitors_.begin());
  visitors_.emplace_back(std::move(visitor), options_);
}

void Coordinator::read_visitor(size_t index) {
  using Outcome = Visitor::Outcome;
  Visitor& visitor = visitors_[index];
  const Outcome outcome = visitor.read(deadline_);
  if (outcome == Outcome::waits) return;
  if (outcome == Outcome::another_secret) ++other_secrets_;
  if (outcome == Outcome::stranger) ++strangers_;
  if (outcome == Outcome::handshake) admit(visitor);
  visitors_.erase(visitors_.begin() + ptrdiff_t(index));
}

/// Takes the socket and the handshake of `visitor`, unless it contradicts the job: then it stays, and gets
/// the rejection, too.
void Coordinator::admit(Visitor& visitor) {
  Handshake handshake = visitor.take_handshake();
  const PeerInfo& peer = handshake.info.peer;
  const int rank = peer.rank;
  const std::string why = disagreement(handshakes_[0]->info.peer, peer);
  if (!why.empty()) deadline_.fail(rank, why);
  if (handshakes_[size_t(rank)]) {
    deadline_.fail(
        rank,
        fmt::format("rank {} connected to a job of {} ranks, where that rank is already connected [SW0328]",
                    rank, options_.size));
  }
  sockets_[size_t(rank)] = visitor.take_socket();
  handshakes_[size_t(rank)] = std::move(handshake);
  ++connected_;
}

void Coordinator::send_all(const std::vector<Handshake>& handshakes) {
  for (int rank = 1; rank < options_.size; ++rank) {
    for (const Handshake& handshake : handshakes) {
      if (send_to(sockets_[size_t(rank)], handshake, rank, deadline_)) continue;
      deadline_.fail(rank, fmt::format("rank {} disconnected before all ranks had connected [SW0330]", rank));
    }
  }
}

// Rejects visitors and ranks in the listen backlog, too. Dropping our handshakes frees the descriptors to
// accept them when descriptors are short.
void Coordinator::reject_all() {
  const Introduction reject = Introduction::of(MessageType::reject);
  for (const Fd& socket : sockets_) send_introduction(socket, reject);
  for (const Visitor& visitor : visitors_) send_introduction(visitor.socket(), reject);
  visitors_.clear();
  handshakes_.clear();
  while (is_readable(listener_)) {
    const Fd queued(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!queued) break;
    send_introduction(queued, reject);
  }
}

std::string Coordinator::missing() const {
  std::string ranks;
  for (size_t rank = 1; rank < handshakes_.size(); ++rank) {
    if (!handshakes_[rank]) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

/// Returns how many visitors were dropped and why, in brackets; "" if none.
std::string Coordinator::dropped() const {
  std::string reasons;
  if (other_secrets_ > 0)
    reasons = fmt::format("{} connections had another SHARDWISE_SECRET", other_secrets_);
  if (strangers_ > 0)
    reasons += fmt::format("{}{} connections were of another program or version", reasons.empty() ? "" : ", ",
                           strangers_);
  return reasons.empty() ? "" : " (" + reasons + ")";
}

}  // namespace shardwise::comm::shm

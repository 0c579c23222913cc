#include "shardwise/comm/mpi/channel.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace shardwise::comm::mpi {
namespace {

constexpr std::chrono::microseconds kLongestNapWithData{50};

}  // namespace

Channel::Channel(const Options& options, Meeting meeting)
    : meeting_(std::move(meeting)),
      timeout_(options.timeout),
      message_bytes_(options.message_bytes),
      announcements_(std::make_shared<Announcements>()),
      left_(size_t(meeting_.size())) {
  announcements_->theirs.resize(size_t(size()));
}

Channel::Attempt Channel::attempt(Awaited awaited) const {
  const bool is_limited = collectives_limit_.count() > 0;
  return {std::string(name(mine_.op)), sequence_, is_limited ? collectives_limit_ : timeout(), awaited};
}

void Channel::announce(const Descriptor& descriptor, const Sides& sides) {
  std::vector<Announcement>& mine = announcements_->mine;
  mine.resize(std::max<size_t>(1, sides.to_peers.size()));
  for (size_t peer = 0; peer < mine.size(); ++peer) {
    mine[peer].sequence = sequence_;
    mine[peer].for_peer = sides.to_peers.empty() ? 0 : sides.to_peers[peer];
    mine[peer].descriptor = descriptor;
    std::copy(sides.payload.begin(), sides.payload.end(), mine[peer].payload);
  }
}

void Channel::check_member(std::string_view op) const {
  TORCH_CHECK_VALUE(!has_left_, op, ": the group takes calls until it is shut down; got one afterward");
}

// Announcements are compared in the order of ranks as they come: two that differ are found whether or not a
// third rank comes.
void Channel::open(const Descriptor& descriptor, const Sides& sides) {
  check_member(name(descriptor.op));
  TORCH_INTERNAL_ASSERT(sides.payload.size() <= kPayloadBytes);
  ++sequence_;
  mine_ = descriptor;
  throw_if_broken(
      attempt(Awaited::announcement));  // who has given up does not announce: the wait sees notices
  if (!sides.to_peers.empty())
    compare_sizes(rank(), sides.to_peers[size_t(rank())], sides.from_peers[size_t(rank())], {});
  announce(descriptor, sides);
  Transfers transfers(*meeting_.process, kWhole);
  transfers.keep(announcements_);
  std::vector<int> peers;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) peers.push_back(peer);
  }
  for (const int peer : peers)
    transfers.receive_at_most(&announcements_->theirs[size_t(peer)], sizeof(Announcement), data(peer));
  const int64_t bytes = int64_t(offsetof(Announcement, payload) + sides.payload.size());
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    transfers.send(&announcements_->mine[sides.to_peers.empty() ? 0 : size_t(peer)], bytes, data(peer));
  }
  const Attempt opening = attempt(Awaited::announcement);
  Backoff backoff = this->backoff(opening.awaited);
  for (size_t i = 0; i < peers.size(); ++i) {
    wait(transfers, i + 1, opening, backoff);
    compare(peers[i], sides, backoff.elapsed());
    backoff.wake();
  }
  wait(transfers, transfers.count(), opening, backoff);
}

void Channel::compare(int peer, const Sides& sides, Backoff::Clock::duration elapsed) {
  const Announcement& theirs = announcements_->theirs[size_t(peer)];
  if (!theirs.descriptor.matches(mine_) || theirs.sequence != sequence_) {
    const std::string ours = fmt::format("rank {} runs {}", rank(), describe(mine_));
    const std::string others = fmt::format("rank {} runs {}", peer, describe(theirs.descriptor));
    fail(attempt(Awaited::announcement), peer, rank() < peer ? ours + ", " + others : others + ", " + ours,
         elapsed);
  }
  compare_sizes(peer, theirs.for_peer, sides.from_peers.empty() ? 0 : sides.from_peers[size_t(peer)],
                elapsed);
}

void Channel::compare_sizes(int peer, int64_t sent, int64_t taken, Backoff::Clock::duration elapsed) {
  if (sent == taken) return;
  fail_transfer(attempt(Awaited::announcement), peer, describe(mine_.dtype, sent),
                describe(mine_.dtype, taken), elapsed);
}

const std::byte* Channel::payload(int peer) const {
  return peer == rank() ? announcements_->mine[0].payload : announcements_->theirs[size_t(peer)].payload;
}

void Channel::run(Transfers& transfers) {
  wait(transfers, transfers.count(), attempt(Awaited::data));
  const std::vector<uint64_t>& hosts = meeting_.hosts;
  crossed_bytes_ +=
      transfers.sent_bytes([&](int peer) { return hosts[size_t(peer)] != hosts[size_t(rank())]; });
}

Backoff Channel::backoff(Awaited awaited) const {
  return {meeting_.policy, awaited == Awaited::data ? kLongestNapWithData : kLongestNap};
}

void Channel::wait(Transfers& transfers, size_t parts, const Attempt& attempt) {
  Backoff backoff = this->backoff(attempt.awaited);
  wait(transfers, parts, attempt, backoff);
}

void Channel::wait(Transfers& transfers, size_t parts, const Attempt& attempt, Backoff& backoff) {
  while (!transfers.advance(parts)) {
    if (backoff.is_asleep()) check_failures(attempt, transfers.peer(), backoff);
    backoff.pause();
  }
  if (transfers.error() != MPI_SUCCESS)
    fail(attempt, transfers.peer(), "MPI: " + error_text(transfers.error()), backoff.elapsed());
}

}  // namespace shardwise::comm::mpi

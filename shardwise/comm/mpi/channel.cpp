#include "shardwise/comm/mpi/channel.h"

#include <algorithm>
#include <cstring>

namespace shardwise::comm::mpi {
namespace {

constexpr std::chrono::microseconds kMaxSleepDuringTransfer{50};

}  // namespace

Channel::Channel(const ConnectOptions& options, Membership membership)
    : GroupGuard(membership.rank, options.timeout),
      membership_(std::move(membership)),
      message_bytes_(options.message_bytes),
      announcements_(std::make_shared<Announcements>()),
      left_(size_t(membership_.size())) {
  announcements_->theirs.resize(size_t(size()));
}

Channel::WaitContext Channel::wait_context(WaitKind kind) const {
  return {name(mine_.op), sequence_, collectives_limit(), kind};
}

void Channel::announce(const Descriptor& descriptor, const Contents& contents) {
  std::vector<Announcement>& mine = announcements_->mine;
  mine.resize(std::max<size_t>(1, contents.to_peers.size()));
  for (size_t peer = 0; peer < mine.size(); ++peer) {
    mine[peer].sequence = sequence_;
    mine[peer].for_peer = contents.to_peers.empty() ? 0 : contents.to_peers[peer];
    mine[peer].descriptor = descriptor;
    std::copy(contents.payload.begin(), contents.payload.end(), mine[peer].payload);
  }
}

// Announcements are compared in rank order as they arrive, so two that differ are detected even if a third
// rank never arrives.
void Channel::open(const Descriptor& descriptor, const Contents& contents) {
  check_member(name(descriptor.op));
  TORCH_INTERNAL_ASSERT(contents.payload.size() <= kPayloadBytes);
  ++sequence_;
  mine_ = descriptor;
  // A rank that has failed sends no announcement; the wait below reads its control message.
  throw_if_broken(wait_context(WaitKind::announcement));
  if (!contents.to_peers.empty())
    compare_sizes(rank(), contents.to_peers[size_t(rank())], contents.from_peers[size_t(rank())], {});
  announce(descriptor, contents);
  Transfers transfers(*membership_.process, kUnsplit);
  transfers.retain(announcements_);
  std::vector<int> peers;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) peers.push_back(peer);
  }
  for (const int peer : peers)
    transfers.receive_at_most(&announcements_->theirs[size_t(peer)], sizeof(Announcement), data(peer));
  const int64_t bytes = int64_t(offsetof(Announcement, payload) + contents.payload.size());
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    transfers.send(&announcements_->mine[contents.to_peers.empty() ? 0 : size_t(peer)], bytes, data(peer));
  }
  const WaitContext opening = wait_context(WaitKind::announcement);
  Backoff backoff = this->backoff(opening.kind);
  for (size_t i = 0; i < peers.size(); ++i) {
    wait(transfers, i + 1, opening, backoff);
    compare(peers[i], contents, backoff.elapsed());
    backoff.reset();
  }
  wait(transfers, transfers.count(), opening, backoff);
}

void Channel::compare(int peer, const Contents& contents, Backoff::Clock::duration elapsed) {
  const Announcement& theirs = announcements_->theirs[size_t(peer)];
  if (!theirs.descriptor.matches(mine_) || theirs.sequence != sequence_) {
    fail(wait_context(WaitKind::announcement), peer, mismatch_text(mine_, peer, theirs.descriptor), elapsed);
  }
  compare_sizes(peer, theirs.for_peer, contents.from_peers.empty() ? 0 : contents.from_peers[size_t(peer)],
                elapsed);
}

void Channel::compare_sizes(int peer, int64_t sent, int64_t expected, Backoff::Clock::duration elapsed) {
  if (sent == expected) return;
  fail_transfer(wait_context(WaitKind::announcement), peer, describe(mine_.dtype, sent),
                describe(mine_.dtype, expected), elapsed);
}

const std::byte* Channel::payload(int peer) const {
  return peer == rank() ? announcements_->mine[0].payload : announcements_->theirs[size_t(peer)].payload;
}

void Channel::run(Transfers& transfers) {
  wait(transfers, transfers.count(), wait_context(WaitKind::data));
  const std::vector<uint64_t>& nodes = membership_.nodes;
  inter_node_bytes_ +=
      transfers.sent_bytes([&](int peer) { return nodes[size_t(peer)] != nodes[size_t(rank())]; });
}

Backoff Channel::backoff(WaitKind kind) const {
  return {membership_.policy, kind == WaitKind::data ? kMaxSleepDuringTransfer : kMaxSleep};
}

void Channel::wait(Transfers& transfers, size_t parts, const WaitContext& context) {
  Backoff backoff = this->backoff(context.kind);
  wait(transfers, parts, context, backoff);
}

void Channel::wait(Transfers& transfers, size_t parts, const WaitContext& context, Backoff& backoff) {
  while (!transfers.advance(parts)) {
    if (backoff.is_sleeping()) check_failures(context, transfers.peer(), backoff);
    backoff.pause();
  }
  if (transfers.error() != MPI_SUCCESS)
    fail(context, transfers.peer(), "MPI: " + error_text(transfers.error()) + " [SW0321]", backoff.elapsed());
}

}  // namespace shardwise::comm::mpi

// Failure detection: control messages that a rank sends when it aborts or leaves a group, and the timeout.
//
// If a rank dies, mpirun ends the whole job (docs/adr/0017).
#include <fmt/format.h>

#include <cstring>

#include "shardwise/base/error.h"
#include "shardwise/comm/mpi/channel.h"

namespace shardwise::comm::mpi {
namespace {

/// How long a failed rank waits for its control messages to be sent.
constexpr std::chrono::milliseconds kFlushTimeout{200};

}  // namespace

/// Short enough for MPI to send it eagerly (without waiting for the receiver).
struct Channel::ControlMessage {
  enum class Kind : int32_t { aborted, left } kind = Kind::aborted;
  int32_t peer = -1;  // the rank to blame
  uint64_t last = 0;  // the sender's last collective, if it left
  char reason[1000] = {};
};

void Channel::check_failures(const WaitContext& context, int peer, const Backoff& backoff) {
  read_control_messages();
  throw_if_broken(context, backoff.elapsed());
  if (has_left(peer, context))
    fail(context, peer, fmt::format("rank {} left the group [SW0313]", peer), backoff.elapsed());
  if (backoff.elapsed() < context.limit) return;
  if (peer < 0) fail(context, peer, "timed out waiting for any rank [SW0322]", backoff.elapsed());
  fail(context, peer, fmt::format("timed out waiting for rank {} [SW0325]", peer), backoff.elapsed());
}

// Messages that a rank sent before it left may still arrive.
bool Channel::has_left(int peer, const WaitContext& context) const {
  if (peer < 0 || context.kind == WaitKind::message) return false;
  const std::lock_guard guard(failure_mutex_);
  const std::optional<uint64_t>& last = left_[size_t(peer)];
  return last && *last < context.sequence;
}

void Channel::read_control_messages() {
  const auto guard = membership_.process->lock();
  int is_there = 1;
  while (true) {
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, /*tag=*/0, membership_.control, &is_there, &status) != MPI_SUCCESS ||
        !is_there)
      return;
    ControlMessage message;
    MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, /*tag=*/0, membership_.control, &status);
    const std::lock_guard failure(failure_mutex_);
    if (message.kind == ControlMessage::Kind::left) {
      left_[size_t(status.MPI_SOURCE)] = message.last;
    } else if (!failure_) {
      failure_ = {message.peer, message.reason};
    }
  }
}

void Channel::throw_if_broken(const WaitContext& context, Backoff::Clock::duration elapsed) {
  std::optional<Failure> failure;
  {
    const std::lock_guard guard(failure_mutex_);
    failure = failure_;
  }
  if (!failure) return;
  membership_.process->mark_unusable();
  throw_failure({context.op, context.sequence, failure->peer, elapsed, context.limit}, failure->reason);
}

void Channel::fail(const WaitContext& context, int peer, const std::string& what,
                   Backoff::Clock::duration elapsed) {
  record_failure({peer, what});
  throw_failure({context.op, context.sequence, peer, elapsed, context.limit}, what);
}

void Channel::record_transfer_failure(const Transfers& transfers) {
  record_failure({transfers.peer(), "MPI: " + error_text(transfers.error()) + " [SW0321]"});
}

void Channel::fail_transfer(const WaitContext& context, int peer, const std::string& sent,
                            const std::string& expected, Backoff::Clock::duration elapsed) {
  fail(context, peer, transfer_text(peer, sent, expected), elapsed);
}

void Channel::abort(const std::string& reason) {
  record_failure({rank(), abort_text(reason)});
}

// A broken group has already sent its failure, which must be the last control message.
void Channel::leave() {
  if (!mark_left() || membership_.process->is_fork()) return;
  {
    const std::lock_guard guard(failure_mutex_);
    if (failure_) return;
  }
  ControlMessage message;
  message.kind = ControlMessage::Kind::left;
  message.last = sequence_;
  send_to_all(message);
}

// The first recorded failure is the one that all ranks report. A fork is not a rank: it sends nothing.
void Channel::record_failure(const Failure& failure) {
  if (is_fork()) return;
  {
    const std::lock_guard guard(failure_mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  membership_.process->mark_unusable();
  ControlMessage message;
  message.peer = failure.peer;
  failure.reason.copy(message.reason, sizeof message.reason - 1);
  send_to_all(message);
}

// The peers may not receive any more: after kFlushTimeout the messages are left to MPI.
void Channel::send_to_all(const ControlMessage& message) {
  try {
    const auto copy = std::make_shared<ControlMessage>(message);
    Transfers transfers(*membership_.process, kUnsplit);
    transfers.retain(copy);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) transfers.send(copy.get(), sizeof(ControlMessage), {membership_.control, peer});
    }
    const auto start = Backoff::Clock::now();
    while (!transfers.advance() && Backoff::Clock::now() - start < kFlushTimeout) sched_yield();
    // NOLINTNEXTLINE(bugprone-empty-catch): an MPI call does not return; the peers will time out.
  } catch (const base::CommError&) {
  }
}

}  // namespace shardwise::comm::mpi

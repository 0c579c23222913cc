// Who failed: notices that ranks send each other when they give up a group or leave it, and the timeout.
//
// A rank that dies takes the job with it: mpirun ends the others (docs/adr/0017).
#include <fmt/format.h>

#include <cstring>

#include "shardwise/base/error.h"
#include "shardwise/comm/mpi/channel.h"

namespace shardwise::comm::mpi {
namespace {

/// For what a failed rank tells its peers before it may end.
constexpr std::chrono::milliseconds kFarewell{200};

}  // namespace

/// Short enough to be sent without waiting for the receiver.
struct Channel::Notice {
  enum Kind : int32_t { aborted, left } kind = aborted;
  int32_t peer = -1;  // the rank to blame
  uint64_t last = 0;  // of a rank that left, its last collective
  char reason[1000] = {};
};

void Channel::check_failures(const Attempt& attempt, int peer, const Backoff& backoff) {
  read_notices();
  throw_if_broken(attempt, backoff.elapsed());
  if (has_left(peer, attempt)) fail(attempt, peer, fmt::format("rank {} left", peer), backoff.elapsed());
  if (backoff.elapsed() < attempt.limit) return;
  const char* const late = attempt.awaited == Awaited::data ? "did not go on" : "did not come";
  fail(attempt, peer, peer < 0 ? std::string("no rank came") : fmt::format("rank {} {}", peer, late),
       backoff.elapsed());
}

// What a rank has sent as a message before it left may still come.
bool Channel::has_left(int peer, const Attempt& attempt) const {
  if (peer < 0 || attempt.awaited == Awaited::message) return false;
  const std::lock_guard guard(failure_mutex_);
  const std::optional<uint64_t>& last = left_[size_t(peer)];
  return last && *last < attempt.sequence;
}

void Channel::read_notices() {
  const auto guard = meeting_.process->enter();
  int is_there = 1;
  while (true) {
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, /*tag=*/0, meeting_.control, &is_there, &status) != MPI_SUCCESS ||
        !is_there)
      return;
    Notice notice;
    MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, /*tag=*/0, meeting_.control, &status);
    const std::lock_guard failure(failure_mutex_);
    if (notice.kind == Notice::left) {
      left_[size_t(status.MPI_SOURCE)] = notice.last;
    } else if (!failure_) {
      failure_ = {notice.peer, notice.reason};
    }
  }
}

void Channel::throw_if_broken(const Attempt& attempt, Backoff::Clock::duration elapsed) {
  std::optional<Failure> failure;
  {
    const std::lock_guard guard(failure_mutex_);
    failure = failure_;
  }
  if (!failure) return;
  meeting_.process->give_up();
  throw_failure(attempt, *failure, elapsed);
}

void Channel::throw_failure(const Attempt& attempt, const Failure& failure,
                            Backoff::Clock::duration elapsed) const {
  const std::chrono::duration<double> waited = elapsed, limit = attempt.limit;
  throw base::CommError({attempt.op, rank(), failure.peer, attempt.sequence, waited.count(), limit.count()},
                        failure.reason);
}

void Channel::fail(const Attempt& attempt, int peer, const std::string& what,
                   Backoff::Clock::duration elapsed) {
  poison({peer, what});
  throw_failure(attempt, {peer, what}, elapsed);
}

void Channel::fail_unwaited(const Transfers& transfers) {
  poison({transfers.peer(), "MPI: " + error_text(transfers.error())});
}

void Channel::fail_transfer(const Attempt& attempt, int peer, const std::string& sent,
                            const std::string& taken, Backoff::Clock::duration elapsed) {
  fail(attempt, peer, fmt::format("rank {} sends {}, rank {} takes {}", peer, sent, rank(), taken), elapsed);
}

void Channel::abort(const std::string& reason) {
  poison({rank(), fmt::format("rank {} aborted: {}", rank(), reason)});
}

// Of a broken group the peers hear the reason, which must not come after this.
void Channel::leave() {
  if (std::exchange(has_left_, true) || meeting_.process->is_fork()) return;
  {
    const std::lock_guard guard(failure_mutex_);
    if (failure_) return;
  }
  Notice notice;
  notice.kind = Notice::left;
  notice.last = sequence_;
  send_to_all(notice);
}

// The first reason that any rank gives is everybody's.
void Channel::poison(const Failure& failure) {
  {
    const std::lock_guard guard(failure_mutex_);
    if (failure_) return;
    failure_ = failure;
  }
  meeting_.process->give_up();
  Notice notice;
  notice.peer = failure.peer;
  failure.reason.copy(notice.reason, sizeof notice.reason - 1);
  send_to_all(notice);
}

// Nobody may be there to receive: the messages are left to MPI after a moment.
void Channel::send_to_all(const Notice& notice) {
  try {
    const auto kept = std::make_shared<Notice>(notice);
    Transfers transfers(*meeting_.process, kWhole);
    transfers.keep(kept);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) transfers.send(kept.get(), sizeof(Notice), {meeting_.control, peer});
    }
    const auto start = Backoff::Clock::now();
    while (!transfers.advance() && Backoff::Clock::now() - start < kFarewell) sched_yield();
    // NOLINTNEXTLINE(bugprone-empty-catch): MPI hangs, and the peers will notice.
  } catch (const base::CommError&) {
  }
}

}  // namespace shardwise::comm::mpi

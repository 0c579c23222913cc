// A barrier that tells who did not come: every rank sends rank 0 an empty message, and rank 0 answers when it
// has one of each.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/mutation.h"
#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBarrierTag = int64_t{1} << 32;  // c10d's tags have 32 bits
constexpr std::chrono::milliseconds kSlack{1000};

}  // namespace

// The others wait for longer than rank 0, which is the one to say who is missing.
void Transport::monitored_barrier(std::chrono::milliseconds limit, bool name_all) {
  const at::Tensor nothing = at::empty({0});
  if (rank() == 0) {
    if (!base::mutated(base::Mutation::await_no_arrivals)) await_arrivals(limit, name_all);
    for (int peer = 1; peer < size(); ++peer) outbox_.send(nothing, peer, kBarrierTag);
  } else {
    outbox_.send(nothing, /*to=*/0, kBarrierTag);
    inbox_.wait(*inbox_.post(nothing, /*source=*/0, kBarrierTag), limit + channel_.timeout() + kSlack);
  }
}

void Transport::await_arrivals(std::chrono::milliseconds limit, bool name_all) {
  std::vector<std::shared_ptr<Receive>> arrivals;
  for (int peer = 1; peer < size(); ++peer)
    arrivals.push_back(inbox_.post(at::empty({0}), peer, kBarrierTag));
  const auto has_come = [&](const auto& arrival) { return arrival->done() || inbox_.try_complete(*arrival); };
  const Attempt attempt{"monitored_barrier", channel_.sequence(), /*peer=*/-1, limit};
  Attempt patient = attempt;  // so that the limit is noticed below, where all that are missing are known
  patient.limit += kSlack;
  const auto ready = [&] {
    return std::all_of(arrivals.begin(), arrivals.end(), has_come) || Clock::now() - attempt.start >= limit;
  };
  const auto can_do_without = [&](int peer, End) {
    return peer == 0 || has_come(arrivals[size_t(peer - 1)]);
  };
  if (!ready()) channel_.wait_for({patient, channel_.control(0).doorbell, ready, can_do_without});

  std::string missing;
  int first = -1;
  for (const auto& arrival : arrivals) {
    if (has_come(arrival) || (first >= 0 && !name_all)) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", arrival->source);
    if (first < 0) first = arrival->source;
  }
  if (first >= 0) channel_.fail(attempt, first, "did not come: rank " + missing);
}

}  // namespace shardwise::comm::shm

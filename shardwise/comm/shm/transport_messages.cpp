// The transport's messages: send, receive, and the barrier that names missing ranks.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "shardwise/comm/shm/transport.h"

namespace shardwise::comm::shm {
namespace {

constexpr int64_t kBarrierTag = int64_t{1} << 32;  // c10d's tags have 32 bits
constexpr std::chrono::milliseconds kSlack{1000};

/// A posted receive; it needs no background thread. Its message goes to another receive if it is dropped.
class TransportReceive final : public PendingReceive {
 public:
  TransportReceive(std::shared_ptr<Transport> transport, std::shared_ptr<Receive> receive)
      : transport_(std::move(transport)), receive_(std::move(receive)) {}
  bool poll() override {
    const GroupGuard::Call call(transport_->guard(), "recv");
    if (!polled_since_) polled_since_ = std::chrono::steady_clock::now();
    return transport_->inbox().poll(*receive_, *polled_since_);
  }
  void wait(std::optional<std::chrono::milliseconds> limit) override {
    const GroupGuard::Call call(transport_->guard(), "recv");
    transport_->inbox().wait(*receive_, limit.value_or(transport_->channel().timeout()));
  }
  int sender() const override { return receive_->sender; }

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Receive> receive_;
  std::optional<std::chrono::steady_clock::time_point> polled_since_;
};

}  // namespace

void Transport::send(const at::Tensor& x, int to, int tag) {
  outbox_.send(x, to, tag);
}

std::unique_ptr<PendingReceive> Transport::receive(const at::Tensor& x, int from, int tag) {
  return std::make_unique<TransportReceive>(shared_from_this(), inbox_.post(x, from, tag));
}

// Every rank sends rank 0 an empty message, and rank 0 replies when it has received all of them, or names the
// missing ranks. The other ranks wait longer than rank 0, so that rank 0 reports the missing ranks.
void Transport::monitored_barrier(std::chrono::milliseconds limit, bool name_all) {
  const GroupGuard::Call call(guard(), "monitored_barrier");
  const at::Tensor empty_message = at::empty({0});
  if (rank() == 0) {
    wait_for_barrier_messages(limit, name_all);
    for (int peer = 1; peer < size(); ++peer) outbox_.send(empty_message, peer, kBarrierTag);
  } else {
    outbox_.send(empty_message, /*to=*/0, kBarrierTag);
    inbox_.wait(*inbox_.post(empty_message, /*source=*/0, kBarrierTag), limit + channel_.timeout() + kSlack);
  }
}

void Transport::wait_for_barrier_messages(std::chrono::milliseconds limit, bool name_all) {
  std::vector<std::shared_ptr<Receive>> arrivals;
  for (int peer = 1; peer < size(); ++peer)
    arrivals.push_back(inbox_.post(at::empty({0}), peer, kBarrierTag));
  const auto has_arrived = [&](const auto& arrival) {
    return arrival->done() || inbox_.try_complete(*arrival);
  };
  const WaitContext context{"monitored_barrier", channel_.sequence(), /*peer=*/-1, limit};
  WaitContext extended = context;  // `ready` ends the wait at the limit, so that all missing ranks are named
  extended.limit += kSlack;
  const auto ready = [&] {
    return std::all_of(arrivals.begin(), arrivals.end(), has_arrived) ||
           std::chrono::steady_clock::now() - context.start >= limit;
  };
  const auto tolerates_loss_of = [&](int peer, PeerState) {
    return peer == 0 || has_arrived(arrivals[size_t(peer - 1)]);
  };
  if (!ready()) channel_.wait_for({extended, channel_.control(0).doorbell, ready, tolerates_loss_of});

  std::string missing;
  int first = -1;
  for (const auto& arrival : arrivals) {
    if (has_arrived(arrival) || (first >= 0 && !name_all)) continue;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", arrival->source);
    if (first < 0) first = arrival->source;
  }
  if (first >= 0) channel_.fail(context, first, "timed out waiting for ranks: " + missing + " [SW0324]");
}

}  // namespace shardwise::comm::shm

#include "shardwise/comm/mpi/messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <optional>

#include "shardwise/base/error.h"
#include "shardwise/comm/done_work.h"
#include "shardwise/comm/mpi/transport.h"

namespace shardwise::comm::mpi {
namespace {

struct Envelope {
  int64_t dtype = 0;
  int64_t numel = 0;
  int64_t payload_tag = 0;
  std::byte payload[488] = {};
};
static_assert(sizeof(Envelope) == 512);

/// A receive under way. Dropped before the envelope is there, it gives its place up (Transfers).
class Receiving final : public c10d::Work {
 public:
  Receiving(std::shared_ptr<Channel> channel, at::Tensor x, const Address& envelope, uint64_t sequence)
      : c10d::Work(channel->rank(),
                   envelope.peer == MPI_ANY_SOURCE ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV),
        channel_(std::move(channel)),
        x_(std::move(x)),
        dense_(dense_like(x_)),
        sequence_(sequence),
        envelope_(std::make_shared<Envelope>()),
        envelopes_(*channel_->meeting().process, kWhole),
        payload_(channel_->transfers()) {
    envelopes_.keep(envelope_);
    envelopes_.receive(envelope_.get(), sizeof(Envelope), envelope);
  }

  /// Never waits; true also after a failure, or the group's timeout since the first call.
  bool isCompleted() override {
    if (is_done_ || exception_) return true;
    if (!polling_) polling_.emplace(Backoff::Policy(), std::chrono::microseconds(0));
    try {
      if (poll(envelopes_) && (is_open_ || open(channel_->timeout())) && poll(payload_)) finish();
    } catch (const base::CommError&) {
      exception_ = std::current_exception();
    }
    return is_done_ || exception_;
  }
  bool isSuccess() const override { return is_done_; }
  bool wait(std::chrono::milliseconds timeout) override {
    if (exception_) std::rethrow_exception(exception_);
    if (is_done_) return true;
    const std::chrono::milliseconds limit = timeout == kNoTimeout ? channel_->timeout() : timeout;
    Backoff backoff = channel_->backoff(Channel::Awaited::message);
    channel_->wait(envelopes_, envelopes_.count(), attempt(limit), backoff);
    if (!is_open_) open(limit);
    backoff.wake();
    channel_->wait(payload_, payload_.count(), attempt(limit), backoff);
    finish();
    return true;
  }
  void synchronize() override {}
  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return {x_}; }

 private:
  Channel::Attempt attempt(std::chrono::milliseconds limit) const {
    return {"recv", sequence_, limit, Channel::Awaited::message};
  }

  bool poll(Transfers& transfers) {
    const Channel::Attempt polling = attempt(channel_->timeout());
    if (!transfers.advance()) {
      channel_->check_failures(polling, transfers.peer(), *polling_);
      return false;
    }
    channel_->wait(transfers, transfers.count(), polling);  // does not wait: tells of an error
    return true;
  }

  /// The envelope is there.
  bool open(std::chrono::milliseconds limit) {
    source_ = envelopes_.source(0);
    const auto dtype = static_cast<int8_t>(x_.scalar_type());
    if (envelope_->dtype != dtype || envelope_->numel != x_.numel()) {
      channel_->fail_transfer(attempt(limit), source_,
                              describe(static_cast<int8_t>(envelope_->dtype), envelope_->numel),
                              describe(dtype, x_.numel()));
    }
    is_open_ = true;
    if (x_.nbytes() > sizeof(Envelope::payload)) {
      payload_.receive(dense_, {channel_->meeting().data, source_, static_cast<int>(envelope_->payload_tag)});
    } else if (x_.numel() > 0) {
      std::memcpy(dense_.mutable_data_ptr(), envelope_->payload, x_.nbytes());
    }
    return true;
  }

  void finish() {
    put_back(x_, dense_);
    is_done_ = true;
  }

  std::shared_ptr<Channel> channel_;
  at::Tensor x_, dense_;
  uint64_t sequence_;
  std::shared_ptr<Envelope> envelope_;
  Transfers envelopes_, payload_;
  std::optional<Backoff> polling_;  // since the first look
  int source_ = -1;
  bool is_open_ = false, is_done_ = false;
};

}  // namespace

// Tag 0 is the channel's own, on both communicators; payloads have the others of `data`.
int Messages::checked(int tag, const char* op) const {
  const int largest = channel_->meeting().process->largest_tag() - 1;
  TORCH_CHECK_VALUE(tag >= 0 && tag <= largest, op, ": tag must be in [0, ", largest, "]; got ", tag);
  return tag + 1;
}

Messages::WorkPtr Messages::send(const at::Tensor& x, int peer, int tag) {
  const int own_tag = checked(tag, "send");
  const Channel::Attempt sending{"send", ++sent_, channel_->timeout(), Channel::Awaited::message};
  channel_->check_member(sending.op);
  channel_->throw_if_broken(sending);
  const c10::NoGradGuard no_grad;
  const at::Tensor copy = at::empty(x.sizes(), x.options());
  copy.copy_(x);
  const int payload_tag = 1 + static_cast<int>(sent_ % uint64_t(channel_->meeting().process->largest_tag()));
  const auto envelope = std::make_shared<Envelope>();
  envelope->dtype = static_cast<int64_t>(x.scalar_type());
  envelope->numel = x.numel();
  envelope->payload_tag = payload_tag;
  const bool is_inside = x.nbytes() <= sizeof(Envelope::payload);
  if (is_inside && x.numel() > 0) std::memcpy(envelope->payload, copy.const_data_ptr(), x.nbytes());
  const auto transfers = std::make_shared<Transfers>(channel_->transfers());
  transfers->keep(envelope);
  transfers->send(envelope.get(), sizeof(Envelope), {channel_->meeting().control, peer, own_tag});
  if (!is_inside) transfers->send(copy, {channel_->meeting().data, peer, payload_tag});
  channel_->meeting().process->drive(
      transfers, [channel = channel_](const Transfers& failed) { channel->fail_unwaited(failed); });
  channel_->throw_if_broken(sending);
  return c10::make_intrusive<DoneWork>(channel_->rank(), c10d::OpType::SEND, std::vector<at::Tensor>{x});
}

Messages::WorkPtr Messages::receive(const at::Tensor& x, int peer, int tag) {
  const int own_tag = checked(tag, "recv");
  channel_->check_member("recv");
  channel_->throw_if_broken({"recv", ++received_, channel_->timeout(), Channel::Awaited::message});
  const Address envelope{channel_->meeting().control, peer == kAnySource ? MPI_ANY_SOURCE : peer, own_tag};
  return c10::make_intrusive<Receiving>(channel_, x, envelope, received_);
}

}  // namespace shardwise::comm::mpi

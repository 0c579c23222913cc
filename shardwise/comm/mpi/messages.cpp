// The messages of a Transport.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <optional>

#include "shardwise/comm/mpi/transport.h"
#include "shardwise/comm/tensor_lists.h"

namespace shardwise::comm::mpi {
namespace {

struct Envelope {
  int64_t dtype = 0;
  int64_t numel = 0;
  int64_t payload_tag = 0;
  std::byte payload[488] = {};
};
static_assert(sizeof(Envelope) == 512);

/// A receive in flight. If it is destroyed before the envelope arrives, the receive is canceled (Transfers).
class EnvelopeReceive final : public PendingReceive {
 public:
  EnvelopeReceive(std::shared_ptr<Channel> channel, at::Tensor x, const Address& envelope, uint64_t sequence)
      : channel_(std::move(channel)),
        x_(std::move(x)),
        dense_(dense_like(x_)),
        sequence_(sequence),
        envelope_(std::make_shared<Envelope>()),
        envelopes_(*channel_->membership().process, kUnsplit),
        payload_(channel_->transfers()) {
    envelopes_.retain(envelope_);
    envelopes_.receive(envelope_.get(), sizeof(Envelope), envelope);
  }

  bool poll() override {
    if (is_done_) return true;
    if (!poll_backoff_) poll_backoff_.emplace(Backoff::Policy(), std::chrono::microseconds(0));
    if (advance(envelopes_) && (has_envelope_ || read_envelope(channel_->timeout())) && advance(payload_))
      complete();
    return is_done_;
  }
  void wait(std::optional<std::chrono::milliseconds> given) override {
    if (is_done_) return;
    const std::chrono::milliseconds limit = base::capped(given.value_or(channel_->timeout()));
    Backoff backoff = channel_->backoff(Channel::WaitKind::message);
    channel_->wait(envelopes_, envelopes_.count(), wait_context(limit), backoff);
    if (!has_envelope_) read_envelope(limit);
    backoff.reset();
    channel_->wait(payload_, payload_.count(), wait_context(limit), backoff);
    complete();
  }
  int sender() const override { return is_done_ ? source_ : -1; }

 private:
  Channel::WaitContext wait_context(std::chrono::milliseconds limit) const {
    return {"recv", sequence_, limit, Channel::WaitKind::message};
  }

  /// Returns whether the transfers are complete, without waiting.
  bool advance(Transfers& transfers) {
    const Channel::WaitContext polling = wait_context(channel_->timeout());
    if (!transfers.advance()) {
      channel_->check_failures(polling, transfers.peer(), *poll_backoff_);
      return false;
    }
    channel_->wait(transfers, transfers.count(), polling);  // does not wait: throws if the transfer failed
    return true;
  }

  /// Checks the received envelope and receives the payload.
  bool read_envelope(std::chrono::milliseconds limit) {
    source_ = envelopes_.source(0);
    const auto dtype = static_cast<int8_t>(x_.scalar_type());
    if (envelope_->dtype != dtype || envelope_->numel != x_.numel()) {
      channel_->fail_transfer(wait_context(limit), source_,
                              describe(static_cast<int8_t>(envelope_->dtype), envelope_->numel),
                              describe(dtype, x_.numel()));
    }
    has_envelope_ = true;
    if (x_.nbytes() > sizeof(Envelope::payload)) {
      payload_.receive(dense_,
                       {channel_->membership().data, source_, static_cast<int>(envelope_->payload_tag)});
    } else if (x_.numel() > 0) {
      std::memcpy(dense_.mutable_data_ptr(), envelope_->payload, x_.nbytes());
    }
    return true;
  }

  void complete() {
    copy_back(x_, dense_);
    is_done_ = true;
  }

  std::shared_ptr<Channel> channel_;
  at::Tensor x_, dense_;
  uint64_t sequence_;
  std::shared_ptr<Envelope> envelope_;
  Transfers envelopes_, payload_;
  std::optional<Backoff> poll_backoff_;  // since the first poll
  int source_ = -1;
  bool has_envelope_ = false, is_done_ = false;
};

}  // namespace

// Tag 0 is reserved for the channel on both communicators; payloads use the other tags of `data`.
int Messages::to_mpi_tag(int tag, const char* op) const {
  const int largest = channel_->membership().process->largest_tag() - 1;
  TORCH_CHECK_VALUE(tag >= 0 && tag <= largest, op, ": tag must be in [0, ", largest, "]; got ", tag,
                    " [SW0510]");
  return tag + 1;
}

void Messages::send(const at::Tensor& x, int peer, int tag) {
  const int mpi_tag = to_mpi_tag(tag, "send");
  const Channel::WaitContext sending{"send", ++sent_, channel_->timeout(), Channel::WaitKind::message};
  channel_->check_member(sending.op);
  channel_->throw_if_broken(sending);
  const c10::NoGradGuard no_grad;
  const at::Tensor copy = at::empty(x.sizes(), x.options());
  copy.copy_(x);
  const int payload_tag =
      1 + static_cast<int>(sent_ % uint64_t(channel_->membership().process->largest_tag()));
  const auto envelope = std::make_shared<Envelope>();
  envelope->dtype = static_cast<int64_t>(x.scalar_type());
  envelope->numel = x.numel();
  envelope->payload_tag = payload_tag;
  const bool fits_envelope = x.nbytes() <= sizeof(Envelope::payload);
  if (fits_envelope && x.numel() > 0) std::memcpy(envelope->payload, copy.const_data_ptr(), x.nbytes());
  const auto transfers = std::make_shared<Transfers>(channel_->transfers());
  transfers->retain(envelope);
  transfers->send(envelope.get(), sizeof(Envelope), {channel_->membership().control, peer, mpi_tag});
  if (!fits_envelope) transfers->send(copy, {channel_->membership().data, peer, payload_tag});
  channel_->membership().process->complete_in_background(
      transfers, [channel = channel_](const Transfers& failed) { channel->record_transfer_failure(failed); });
  channel_->throw_if_broken(sending);
}

std::unique_ptr<PendingReceive> Messages::receive(const at::Tensor& x, int peer, int tag) {
  const int mpi_tag = to_mpi_tag(tag, "recv");
  channel_->check_member("recv");
  channel_->throw_if_broken({"recv", ++received_, channel_->timeout(), Channel::WaitKind::message});
  const Address envelope{channel_->membership().control, peer == kAnySource ? MPI_ANY_SOURCE : peer, mpi_tag};
  return std::make_unique<EnvelopeReceive>(channel_, x, envelope, received_);
}

}  // namespace shardwise::comm::mpi

#include "shardwise/comm/mpi/messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "shardwise/base/error.h"
#include "shardwise/comm/mpi/transport.h"
#include "shardwise/comm/shm/work.h"

namespace shardwise::comm::mpi {
namespace {

struct Envelope {
  int64_t dtype = 0;
  int64_t numel = 0;
};

/// A receive under way. Dropped without a wait, it gives its place up (Transfers).
class Receiving final : public c10d::Work {
 public:
  Receiving(std::shared_ptr<Channel> channel, at::Tensor x, const Address& envelope, uint64_t sequence)
      : c10d::Work(channel->rank(),
                   envelope.peer == MPI_ANY_SOURCE ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV),
        channel_(std::move(channel)),
        x_(std::move(x)),
        dense_(dense_like(x_)),
        envelope_at_(envelope),
        sequence_(sequence),
        envelope_(std::make_shared<Envelope>()),
        envelopes_(*channel_->meeting().process, kWhole),
        payload_(channel_->transfers()) {
    envelopes_.keep(envelope_);
    envelopes_.receive(envelope_.get(), sizeof(Envelope), envelope);
    if (envelope.peer != MPI_ANY_SOURCE) post(envelope.peer);
  }

  /// Never waits; true also after a failure.
  bool isCompleted() override {
    if (is_done_ || exception_) return true;
    const Channel::Attempt polling = attempt(channel_->timeout());
    try {
      channel_->throw_if_broken(polling);
      if (!envelopes_.advance()) return false;
      channel_->wait(envelopes_, envelopes_.count(), polling);  // of what is done or has failed
      open(channel_->timeout());
      if (!payload_.advance()) return false;
      channel_->wait(payload_, payload_.count(), polling);
      finish();
    } catch (const base::CommError&) {
      exception_ = std::current_exception();
    }
    return true;
  }
  bool isSuccess() const override { return is_done_; }
  bool wait(std::chrono::milliseconds timeout) override {
    if (exception_) std::rethrow_exception(exception_);
    if (is_done_) return true;
    const std::chrono::milliseconds limit = timeout == kNoTimeout ? channel_->timeout() : timeout;
    channel_->wait(envelopes_, envelopes_.count(), attempt(limit));
    open(limit);
    channel_->wait(payload_, payload_.count(), attempt(limit));
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
  void post(int source) {
    source_ = source;
    payload_.receive(dense_, {channel_->meeting().data, source, envelope_at_.tag});
  }
  /// The envelope is there.
  void open(std::chrono::milliseconds limit) {
    const Envelope expected{static_cast<int64_t>(x_.scalar_type()), x_.numel()};
    const int source = envelopes_.source(0);
    if (envelope_->dtype != expected.dtype || envelope_->numel != expected.numel) {
      channel_->fail_transfer(attempt(limit), source,
                              shm::describe(int8_t(envelope_->dtype), envelope_->numel),
                              shm::describe(int8_t(expected.dtype), expected.numel));
    }
    if (source_ < 0) post(source);
  }
  void finish() {
    put_back(x_, dense_);
    is_done_ = true;
  }

  std::shared_ptr<Channel> channel_;
  at::Tensor x_, dense_;
  Address envelope_at_;
  uint64_t sequence_;
  std::shared_ptr<Envelope> envelope_;
  Transfers envelopes_, payload_;
  int source_ = -1;
  bool is_done_ = false;
};

}  // namespace

// Tag 0 is the channel's own, on both communicators.
int Messages::checked(int tag, const char* op) const {
  const int largest = channel_->meeting().process->largest_tag() - 1;
  TORCH_CHECK_VALUE(tag >= 0 && tag <= largest, op, ": tag must be in [0, ", largest, "]; got ", tag);
  return tag + 1;
}

Messages::WorkPtr Messages::send(const at::Tensor& x, int peer, int tag) {
  const int own_tag = checked(tag, "send");
  channel_->throw_if_broken({"send", ++sent_, channel_->timeout(), Channel::Awaited::message});
  const c10::NoGradGuard no_grad;
  const at::Tensor copy = at::empty(x.sizes(), x.options());
  copy.copy_(x);
  const auto envelope =
      std::make_shared<Envelope>(Envelope{static_cast<int64_t>(x.scalar_type()), x.numel()});
  const auto transfers = std::make_shared<Transfers>(channel_->transfers());
  transfers->keep(envelope);
  transfers->send(envelope.get(), sizeof(Envelope), {channel_->meeting().control, peer, own_tag});
  transfers->send(copy, {channel_->meeting().data, peer, own_tag});
  channel_->meeting().process->drive(transfers);
  return c10::make_intrusive<shm::DoneWork>(channel_->rank(), c10d::OpType::SEND, std::vector<at::Tensor>{x});
}

Messages::WorkPtr Messages::receive(const at::Tensor& x, int peer, int tag) {
  const int own_tag = checked(tag, "recv");
  channel_->throw_if_broken({"recv", ++received_, channel_->timeout(), Channel::Awaited::message});
  const Address envelope{channel_->meeting().control, peer == kAnySource ? MPI_ANY_SOURCE : peer, own_tag};
  return c10::make_intrusive<Receiving>(channel_, x, envelope, received_);
}

}  // namespace shardwise::comm::mpi

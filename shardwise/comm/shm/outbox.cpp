#include "shardwise/comm/shm/outbox.h"

#include "shardwise/comm/shm/pack.h"

namespace shardwise::comm::shm {

void Outbox::send(const at::Tensor& x, int to, int64_t tag) {
  const WaitContext context{"send", ++sends_, to, channel_.timeout()};
  channel_.check_usable(context);
  wait_for_room(context);
  free_received();
  Mailbox& mailbox = channel_.control(channel_.rank()).mailboxes[to];
  const uint64_t number = mailbox.posted.load(std::memory_order_relaxed);
  Envelope& envelope = mailbox.envelopes[number % kEnvelopes];
  Block block = x.nbytes() <= kInlineMessage ? Block() : Block(channel_.heap(), int64_t(x.nbytes()));
  std::byte* data = block.data() != nullptr ? block.data() : envelope.payload;
  pack(data, x);
  copied_bytes_ += int64_t(x.nbytes());
  envelope.tag = tag;
  envelope.numel = x.numel();
  envelope.offset = uint64_t(data - channel_.base(channel_.rank()));
  envelope.dtype = static_cast<int8_t>(x.scalar_type());
  blocks_[size_t(to)].push_back(std::move(block));
  mailbox.posted.store(number + 1);
  ring(channel_.control(to).doorbell);
}

uint64_t Outbox::unreceived(int peer) const {
  const int rank = channel_.rank();
  return channel_.control(rank).mailboxes[peer].posted.load(std::memory_order_relaxed) -
         channel_.control(peer).mailboxes[rank].received.load(std::memory_order_acquire);
}

void Outbox::wait_for_room(const WaitContext& context) {
  const int to = context.peer;
  const auto has_room = [&] { return unreceived(to) < kEnvelopes; };
  if (has_room()) return;
  const auto ready = [&] {
    inbox_.drain();
    return has_room();
  };
  const auto tolerates_loss_of = [&](int peer, PeerState) { return peer != to || has_room(); };
  channel_.wait_for({context, channel_.control(channel_.rank()).doorbell, ready, tolerates_loss_of});
}

void Outbox::free_received() {
  for (size_t peer = 0; peer < blocks_.size(); ++peer) {
    std::deque<Block>& blocks = blocks_[peer];
    while (!blocks.empty() && blocks.size() > unreceived(int(peer))) {
      blocks.front().free_at_once();
      blocks.pop_front();
    }
  }
}

}  // namespace shardwise::comm::shm

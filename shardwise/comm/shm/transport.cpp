// The entry points of shm.h, and what a Transport's collectives share: how inputs are staged, posted and
// read.
#include "shardwise/comm/shm/transport.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "shardwise/comm/shm/pack.h"
#include "shardwise/comm/shm/rendezvous.h"
#include "shardwise/comm/shm/shm.h"

namespace shardwise::comm::shm {

Group connect(const ConnectOptions& options) {
  check_options(options);
  return options.size == 1 ? Group() : Group(Transport::connect(options));
}

std::optional<OneShotLimit> one_shot_limit(const Group& group) {
  const SymmetricHeap* const heap = group.symmetric_heap();
  if (heap == nullptr) return std::nullopt;
  return heap->one_shot();
}

std::shared_ptr<Transport> Transport::connect(const ConnectOptions& options) {
  check_options(options);
  if (!options.part) return std::make_shared<Transport>(rendezvous(options), options.rank, options.timeout);
  auto* const job = dynamic_cast<Transport*>(options.part->group.backend());
  TORCH_CHECK_VALUE(
      job != nullptr && std::ssize(options.part->ranks) == options.size,
      "connect: a part of a job needs a group that shares memory, and a rank of it for each of ",
      options.size, "; got ", options.part->ranks.size(), " [SW0862]");
  return std::make_shared<Transport>(rendezvous(options), options.rank, options.timeout,
                                     PartOfJob{&job->channel(), options.part->ranks},
                                     job->shared_from_this());
}

Transport::Transport(Rendezvous rendezvous, int rank, std::chrono::milliseconds timeout,
                     const PartOfJob& part, std::shared_ptr<CollectiveBackend> job)
    : one_shot_(rendezvous.one_shot),
      job_(std::move(job)),
      channel_(std::move(rendezvous), rank, timeout, part),
      heap_(channel_.heap()),
      inbox_(channel_),
      outbox_(channel_, inbox_),
      sources_(size_t(channel_.size())),
      targets_(size_t(channel_.size())) {}

at::Tensor Transport::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const int64_t bytes = c10::multiply_integers(sizes) * int64_t(c10::elementSize(dtype));
  if (bytes == 0) return at::empty(sizes, at::TensorOptions().dtype(dtype));
  std::byte* data = heap_->allocate(bytes);
  const auto free = [heap = heap_, bytes](void* block) { heap->free(static_cast<std::byte*>(block), bytes); };
  return at::from_blob(data, sizes, free, at::TensorOptions().dtype(dtype));
}

bool Transport::contains(const at::Tensor& x) const {
  return x.numel() == 0 || (x.is_cpu() && heap_->region().contains(x.const_data_ptr()));
}

StagedInput Transport::stage_bytes(Op op, int64_t bytes, int64_t reserved) {
  if (reserved + bytes <= int64_t(kInlineBytes))
    return {channel_.next_payload(op) + reserved, /*in_place=*/false, HeapBlock()};
  HeapBlock block(heap_, bytes);
  return {block.data(), /*in_place=*/false, std::move(block)};
}

StagedInput Transport::stage(Op op, const at::Tensor& x, int64_t reserved) {
  if (x.numel() > 0 && x.is_contiguous() && contains(x)) {
    return {static_cast<std::byte*>(x.data_ptr()), /*in_place=*/true, HeapBlock()};
  }
  StagedInput staged = stage_bytes(op, int64_t(x.nbytes()), reserved);
  copy_in(staged.data, x);
  return staged;
}

StagedInput Transport::stage_all(Op op, const std::vector<at::Tensor>& pieces, int64_t reserved) {
  int64_t bytes = 0;
  for (const at::Tensor& piece : pieces) bytes += int64_t(piece.nbytes());
  StagedInput staged = stage_bytes(op, bytes, reserved);
  std::byte* target = staged.data;
  for (const at::Tensor& piece : pieces) {
    copy_in(target, piece);
    target += piece.nbytes();
  }
  return staged;
}

void Transport::copy_in(std::byte* target, const at::Tensor& x) {
  pack(target, x);
  copied_bytes_ += int64_t(x.nbytes());
}

void Transport::copy_out(at::Tensor& target, const std::byte* source) {
  if (target.const_data_ptr() == source) return;  // this rank's part of an all_gather in place
  unpack(target, source);
  copied_bytes_ += int64_t(target.nbytes());
}

Arrivals& Transport::post(Descriptor descriptor, const StagedInput& staged) {
  if (staged.data != nullptr) descriptor.offset = uint64_t(staged.data - channel_.base(rank()));
  return channel_.post(descriptor);
}

const std::byte* Transport::input_of(Arrivals& arrivals, int peer) {
  return channel_.base(peer) + channel_.wait_for_arrival(arrivals, peer).offset;
}

void Transport::finish(WaitForPeers wait_for_peers) {
  channel_.depart();
  if (wait_for_peers == WaitForPeers::yes) channel_.wait_for_departures();
  outbox_.free_received();
}

}  // namespace shardwise::comm::shm

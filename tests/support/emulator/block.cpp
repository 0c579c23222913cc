#include "tests/support/emulator/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/support/emulator/fault.h"

namespace shardwise::emulator {
namespace {

template <class Size>
uint3 position(unsigned number, const Size& size) {
  return {number % size.x, number / size.x % size.y, number / size.x / size.y};
}

std::string text(const uint3& at) {
  return "(" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + ")";
}

bool holds(unsigned mask, unsigned lane) {
  return (mask >> lane & 1) != 0;
}

}  // namespace

std::string name(const Thread& thread) {
  return "thread " + text(thread.place.thread) + " of block " + text(thread.place.block);
}

Block::Block(std::shared_ptr<Operation> kernel, unsigned number, int set, Seats& seats, void (*entry)())
    : kernel_(std::move(kernel)), set_(set), seats_(seats) {
  const Grid& grid = *kernel_->grid;
  const unsigned count = grid.threads.x * grid.threads.y * grid.threads.z;
  live_ = count;
  warps_.resize((count + kWarp - 1) / kWarp);
  if (count % kWarp > 0) warps_.back().ended = ~0u << count % kWarp;
  const uint3 own = position(number, grid.blocks);
  for (unsigned i = 0; i < count; ++i) {
    const Seat seat = seats_.take(set_);
    threads_.push_back(
        std::make_unique<Thread>(Thread{.place = {position(i, grid.threads), own, grid.threads, grid.blocks},
                                        .block = this,
                                        .number = i,
                                        .seat = seat,
                                        .context = Context(seat.begin, seat.bytes, entry)}));
  }
}

Block::~Block() {
  for (const auto& thread : threads_) seats_.give_back(set_, thread->seat);
  for (const Shared& shared : shared_) std::free(shared.memory);
}

Threads Block::threads() const {
  Threads all;
  for (const auto& thread : threads_) all.push_back(thread.get());
  return all;
}

void* Block::shared_memory(size_t bytes, const void* tag) {
  const auto found = std::ranges::find(shared_, tag, &Shared::tag);
  if (found != shared_.end()) return found->memory;
  const Unseen unseen;
  void* const memory = std::malloc(bytes);  // so that AddressSanitizer sees its bounds
  std::memset(memory, 0xff, bytes);
  shared_.push_back({tag, memory});
  return memory;
}

Threads Block::arrive(Thread& thread) {
  if (thread.state == State::at_barrier) return arrive_at_barrier(thread);
  if (thread.state == State::in_warp) return arrive_in_warp(thread);
  if (thread.state == State::done) end(thread);
  return {};
}

Threads Block::arrive_at_barrier(Thread& thread) {
  if (waiting_++ == 0) first_waiting_ = &thread;
  if (thread.site != first_waiting_->site)
    throw Fault("barrier: " + name(*first_waiting_) + " and " + name(thread) +
                " wait in different __syncthreads()");
  if (live_ < threads_.size()) throw Fault("barrier: " + name(thread) + " waits for threads that have ended");
  if (waiting_ < live_) return {};
  waiting_ = 0;
  ++generation_;
  return threads();
}

/// The lanes `here` of the thread's mask must be in the same operation with the same mask.
void Block::check_same_operation(const Thread& thread, unsigned here) const {
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (!holds(here, lane)) continue;
    const Thread& other = *threads_[thread.warp() * kWarp + lane];
    if (other.mask != thread.mask || other.site != thread.site)
      throw Fault("warp: " + name(thread) + " and " + name(other) +
                  " are in different operations or give different masks");
  }
}

Threads Block::arrive_in_warp(Thread& thread) {
  Warp& warp = warps_[thread.warp()];
  if (!holds(thread.mask, thread.lane())) throw Fault("warp: " + name(thread) + " is not in its own mask");
  if ((thread.mask & warp.ended) != 0)
    throw Fault("warp: " + name(thread) + " waits for lanes that have ended or never were");
  warp.waiting |= 1u << thread.lane();
  const unsigned here = warp.waiting & thread.mask;
  check_same_operation(thread, here);
  if (here != thread.mask) return {};
  warp.waiting &= ~thread.mask;
  ++warp.generation;
  Threads together;
  for (unsigned lane = 0; lane < kWarp; ++lane)
    if (holds(thread.mask, lane)) together.push_back(threads_[thread.warp() * kWarp + lane].get());
  for (Thread* to : together)
    for (const Thread* from : together) to->of_warp[from->lane()] = from->own;
  return together;
}

void Block::end(Thread& thread) {
  Warp& warp = warps_[thread.warp()];
  --live_;
  warp.ended |= 1u << thread.lane();
  const size_t first = size_t{thread.warp()} * kWarp;
  for (size_t i = first; i < std::min(first + kWarp, threads_.size()); ++i) {
    const Thread& other = *threads_[i];
    if (other.state == State::in_warp && (other.mask & warp.ended) != 0)
      throw Fault("warp: " + name(other) + " waits for " + name(thread) + ", which has ended");
  }
  if (waiting_ > 0)
    throw Fault("barrier: " + name(thread) + " ended while " + name(*first_waiting_) + " waits for it");
}

}  // namespace shardwise::emulator

#include "shardwise/comm/shm/channel.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace shardwise::comm::shm {

Channel::Channel(Meeting meeting, int rank, std::chrono::milliseconds timeout)
    : progress_(std::make_shared<Progress>()),
      rank_(rank),
      timeout_(timeout),
      policy_(WaitPolicy::choose(int(meeting.members.size()), meeting.cores)),
      opening_(int(meeting.members.size())) {
  for (Member& member : meeting.members) {
    bases_.push_back(member.region.base());
    controls_.push_back(&member.region.control());
    pids_.push_back(member.pid);
    lifetimes_.push_back(std::move(member.lifetime));
    if (int(bases_.size()) - 1 == rank) {
      heap_ = std::make_shared<Heap>(std::move(member.region), progress_);
    } else {
      peers_.push_back(std::move(member.region));
    }
  }
}

void Channel::leave() {
  has_left_ = true;
  if (is_fork()) return;
  Control& own = *controls_[size_t(rank_)];
  if (own.left.exchange(1) != 0) return;
  for (Slot& slot : own.slots) wake_sleepers(slot.flag);
  wake_sleepers(own.closed);
  for (Control* control : controls_) ring(control->doorbell);
}

std::byte* Channel::next_payload() {
  check_sound(attempt(-1));  // or a peer may still be reading what the slot held
  complete_pending();
  return controls_[size_t(rank_)]->slots[(sequence() + 1) % 2].payload;
}

Opening& Channel::post(const Descriptor& descriptor) {
  announce(descriptor);
  opening_.sequence = sequence();
  std::fill(opening_.seen.begin(), opening_.seen.end(), 0);
  return opening_;
}

std::shared_ptr<Opening> Channel::post_lazily(const Descriptor& descriptor) {
  auto opening = std::make_shared<Opening>(size());
  announce(descriptor);
  opening->sequence = sequence();
  pending_ = opening;
  return opening;
}

// Keeps two promises: that a rank writes slot n mod 2 again only when all peers have posted n+1 (control.h),
// and that `passed` stands for every collective before (heap.h).
void Channel::complete_pending() {
  if (!pending_) return;
  await_all(*pending_);
  pending_.reset();
}

void Channel::check_member(std::string_view op) const {
  TORCH_CHECK_VALUE(!has_left_, op, ": the group takes calls until it is shut down; got one afterward");
}

void Channel::check_usable(const Attempt& attempt) {
  check_member(attempt.op);
  check_sound(attempt);
}

void Channel::check_sound(const Attempt& attempt) {
  if (is_broken()) throw_if_aborted(attempt);
  if (is_open()) fail_unfinished();
}

void Channel::announce(const Descriptor& descriptor) {
  check_member(name(descriptor.op));
  if (is_open() && !is_broken()) fail_unfinished();
  complete_pending();
  const uint64_t next = sequence() + 1;
  mine_ = descriptor;
  progress_->started.store(next);
  check_sound(attempt(-1));
  Slot& slot = controls_[size_t(rank_)]->slots[next % 2];
  slot.descriptor = descriptor;
  advance(slot.flag, next);
}

const Descriptor& Channel::await(Opening& opening, int peer) {
  const size_t i = size_t(peer);
  if (!opening.seen[i]) {
    if (is_broken()) throw_if_aborted(attempt(peer));
    TORCH_INTERNAL_ASSERT(opening.sequence == sequence());
    await(Phase::opening, peer);
    opening.descriptors[i] = controls_[i]->slots[opening.sequence % 2].descriptor;
    if (!opening.descriptors[i].matches(mine_)) fail_mismatch(opening.descriptors[i], peer);
    opening.seen[i] = 1;
  }
  return opening.descriptors[i];
}

void Channel::await_all(Opening& opening) {
  for (int peer = 0; peer < size(); ++peer) await(opening, peer);
  progress_->passed.store(opening.sequence);
}

const std::byte* Channel::payload(const Opening& opening, int peer) const {
  return controls_[size_t(peer)]->slots[opening.sequence % 2].payload;
}

void Channel::close() {
  advance(controls_[size_t(rank_)]->closed, sequence());
}

void Channel::await_closed() {
  for (int peer = 0; peer < size(); ++peer) await(Phase::closing, peer);
}

}  // namespace shardwise::comm::shm

#include "shardwise/comm/shm/channel.h"

#include <algorithm>

namespace shardwise::comm::shm {

// The ranks of the whole job share the cores, so a part waits as the job does.
Channel::Channel(Rendezvous rendezvous, int rank, std::chrono::milliseconds timeout, const PartOfJob& part)
    : GroupGuard(rank, timeout, part.ranks),
      part_(part),
      progress_(std::make_shared<Progress>()),
      policy_(part.job ? part.job->policy_
                       : WaitPolicy::choose(int(rendezvous.members.size()), rendezvous.cores)),
      arrivals_(int(rendezvous.members.size())) {
  for (Member& member : rendezvous.members) {
    bases_.push_back(member.region.base());
    controls_.push_back(&member.region.control());
    pids_.push_back(member.pid);
    pidfds_.push_back(std::move(member.pidfd));
    if (int(bases_.size()) - 1 == rank) {
      heap_ = std::make_shared<Heap>(std::move(member.region), progress_);
    } else {
      peers_.push_back(std::move(member.region));
    }
  }
}

void Channel::leave() {
  if (!mark_left() || is_fork()) return;
  local().left.store(1);
  for (Slot& slot : local().slots) wake_sleepers(slot.flag);
  wake_sleepers(local().departed);
  for (Control* control : controls_) ring(control->doorbell);
}

std::byte* Channel::next_payload(Op op) {
  check_member(name(op));              // else the wait below could abort peers that are only late
  check_not_broken(wait_context(-1));  // else a peer may still read the slot's previous payload
  complete_deferred();
  return local().slots[(sequence() + 1) % 2].payload;
}

Arrivals& Channel::post(const Descriptor& descriptor) {
  announce(descriptor);
  arrivals_.sequence = sequence();
  std::fill(arrivals_.seen.begin(), arrivals_.seen.end(), 0);
  return arrivals_;
}

std::shared_ptr<Arrivals> Channel::post_deferred(const Descriptor& descriptor) {
  auto arrivals = std::make_shared<Arrivals>(size());
  announce(descriptor);
  arrivals->sequence = sequence();
  deferred_ = arrivals;
  return arrivals;
}

// Maintains two invariants: a rank rewrites slot n mod 2 only after all peers have posted n+1 (control.h),
// and `passed` covers every earlier collective (heap.h).
void Channel::complete_deferred() {
  if (!deferred_) return;
  wait_for_arrivals(*deferred_);
  deferred_.reset();
}

void Channel::check_usable(const WaitContext& context) {
  check_member(context.op);
  check_not_broken(context);
}

void Channel::check_not_broken(const WaitContext& context) {
  if (is_broken()) throw_if_aborted(context);
  if (in_collective()) fail_unfinished();
}

void Channel::announce(const Descriptor& descriptor) {
  check_member(name(descriptor.op));
  if (in_collective() && !is_broken()) fail_unfinished();
  complete_deferred();
  const uint64_t next = sequence() + 1;
  descriptor_ = descriptor;
  descriptor_.held_shards = held_shards_;
  progress_->started.store(next);
  check_not_broken(wait_context(-1));
  Slot& slot = local().slots[next % 2];
  slot.descriptor = descriptor_;
  advance(slot.flag, next);
}

const Descriptor& Channel::wait_for_arrival(Arrivals& arrivals, int peer) {
  const size_t i = size_t(peer);
  if (!arrivals.seen[i]) {
    if (is_broken()) throw_if_aborted(wait_context(peer));
    TORCH_INTERNAL_ASSERT(arrivals.sequence == sequence());
    wait_for_phase(Phase::arrival, peer);
    arrivals.descriptors[i] = controls_[i]->slots[arrivals.sequence % 2].descriptor;
    if (!arrivals.descriptors[i].matches(descriptor_)) fail_mismatch(arrivals.descriptors[i], peer);
    arrivals.seen[i] = 1;
  }
  return arrivals.descriptors[i];
}

void Channel::wait_for_arrivals(Arrivals& arrivals) {
  for (int peer = 0; peer < size(); ++peer) wait_for_arrival(arrivals, peer);
  progress_->passed.store(arrivals.sequence);
}

const std::byte* Channel::payload(const Arrivals& arrivals, int peer) const {
  return controls_[size_t(peer)]->slots[arrivals.sequence % 2].payload;
}

void Channel::depart() {
  advance(local().departed, sequence());
}

void Channel::wait_for_departures() {
  for (int peer = 0; peer < size(); ++peer) wait_for_phase(Phase::departure, peer);
}

}  // namespace shardwise::comm::shm

#include "tests/support/emulator/device.h"

#include <algorithm>
#include <numeric>

namespace shardwise::emulator {
namespace {

/// Steps in which all threads only pause, after which none will ever go on.
constexpr int kMostIdleSteps = 200'000;

std::vector<unsigned> numbers_of_blocks(const dim3& blocks) {
  std::vector<unsigned> numbers(size_t{blocks.x} * blocks.y * blocks.z);
  std::iota(numbers.rbegin(), numbers.rend(), 0u);
  return numbers;
}

}  // namespace

Device& Device::instance() {
  static Device device;
  return device;
}

void Device::set(const Settings& settings) {
  settings_ = settings;
  random_.seed(settings.seed);
}

void Device::add(const std::shared_ptr<Operation>& operation) {
  operation->queued.release();
  if (operation->grid) ++launches_;
  pending_.push_back(operation);
}

size_t Device::pick(size_t count) {
  if (settings_.order == Order::forward) return 0;
  if (settings_.order == Order::backward) return count - 1;
  return random_() % count;
}

// Threads.

void Device::leave(bool for_good) {
  Thread& own = *current_;
  host_clock_.enter();
  before_switch(for_good ? nullptr : &own.fake_stack, host_stack_);
  Context::switch_between(own.context, host_);
  after_switch(own.fake_stack);
}

void Device::wait_in(State state, const void* site) {
  current_->state = state;
  current_->site = site;
  leave(/*for_good=*/false);
}

void Device::run_thread() {
  Device& device = instance();
  device.host_stack_ = after_switch(nullptr);
  Thread& own = *device.current_;
  Operation& kernel = own.block->kernel();
  kernel.acquire();
  try {
    kernel.body();
  } catch (const Fault& fault) {
    own.fault = std::make_exception_ptr(Fault(name(own) + ": " + fault.what()));
  }
  kernel.release();
  own.state = State::done;
  device.leave(/*for_good=*/true);
}

void Device::resume(Thread& thread) {
  current_ = &thread;
  host_clock_ = Clock::current();
  thread.seat.clock.enter();
  void* fake_stack = nullptr;
  before_switch(&fake_stack, thread.seat.stack());
  Context::switch_between(host_, thread.context);
  after_switch(fake_stack);
  current_ = nullptr;
}

Thread& Device::take_ready() {
  const bool is_backward = settings_.order == Order::backward;
  std::swap(ready_[pick(ready_.size())], is_backward ? ready_.back() : ready_.front());
  Thread& thread = is_backward ? *ready_.back() : *ready_.front();
  is_backward ? ready_.pop_back() : ready_.pop_front();
  return thread;
}

void Device::step() {
  if (ready_.empty()) throw_hang();
  Thread& thread = take_ready();
  resume(thread);
  if (thread.fault) std::rethrow_exception(thread.fault);
  if (thread.state == State::pausing) {
    if (++idle_ > kMostIdleSteps)
      throw Fault("hang: " + name(thread) + " waits for ever for what no resident block does");
    thread.state = State::ready;
    settings_.order == Order::backward ? ready_.push_front(&thread) : ready_.push_back(&thread);
    return;
  }
  idle_ = 0;
  Block& block = *thread.block;
  for (Thread* other : block.arrive(thread)) {
    other->state = State::ready;
    ready_.push_back(other);
  }
  if (block.is_done()) end_block(block);
}

void Device::throw_hang() const {
  for (const auto& block : resident_)
    for (const Thread* thread : block->threads())
      if (thread->state != State::done)
        throw Fault("hang: nobody can go on; " + name(*thread) + " waits in a " +
                    (thread->state == State::in_warp ? "warp operation" : "barrier"));
  throw Fault("hang: an operation waits for one that was never queued");
}

// Blocks and operations.

bool Device::may_start(const Operation& operation) const {
  const bool has_room = std::ssize(resident_) < settings_.resident_blocks;
  const bool has_parts =
      operation.grid ? !operation.is_started || !operation.grid->to_start.empty() : !operation.is_started;
  return has_parts && (has_room || !operation.grid) &&
         std::ranges::all_of(operation.after, [](const auto& before) { return before->is_done; });
}

/// Returns the operations that may start now. In backward order functions of the host come after all threads
/// that can go on: forward they come before.
std::vector<std::shared_ptr<Operation>> Device::startable() const {
  const bool defers_functions = settings_.order == Order::backward && !ready_.empty() && idle_ == 0;
  std::vector<std::shared_ptr<Operation>> able;
  for (const auto& operation : pending_)
    if (may_start(*operation) && (operation->grid || !defers_functions)) able.push_back(operation);
  return able;
}

/// In random order threads also run between two starts.
void Device::start_what_may() {
  while (ready_.empty() || settings_.order != Order::random || random_() % 2 == 0) {
    std::erase_if(pending_, [](const auto& operation) { return operation->is_done; });
    const auto able = startable();
    if (able.empty()) return;
    start(able[pick(able.size())]);
  }
}

void Device::start(const std::shared_ptr<Operation>& operation) {
  if (!operation->grid) return run_host_function(*operation);
  Grid& grid = *operation->grid;
  if (!operation->is_started) {
    operation->is_started = true;
    grid.to_start = numbers_of_blocks(grid.blocks);
    if (settings_.order == Order::backward) std::ranges::reverse(grid.to_start);
    if (settings_.order == Order::random) std::ranges::shuffle(grid.to_start, random_);
  }
  start_block(operation);
}

void Device::start_block(const std::shared_ptr<Operation>& kernel) {
  Grid& grid = *kernel->grid;
  const unsigned number = grid.to_start.back();
  grid.to_start.pop_back();
  ++grid.running;
  const int set = static_cast<int>(random_() % Seats::kSets);
  resident_.push_back(std::make_unique<Block>(kernel, number, set, seats_, run_thread));
  for (Thread* thread : resident_.back()->threads()) ready_.push_back(thread);
}

/// Runs on the host's stack, with a clock of its own.
void Device::run_host_function(Operation& operation) {
  const Clock own = Clock::current();
  const int set = static_cast<int>(random_() % Seats::kSets);
  const Seat seat = seats_.take(set);
  seat.clock.enter();
  operation.acquire();
  if (operation.body) operation.body();
  operation.release();
  own.enter();
  seats_.give_back(set, seat);
  operation.is_started = true;
  operation.finish();
}

void Device::end_block(Block& block) {
  Operation& kernel = block.kernel();
  const bool is_last = --kernel.grid->running == 0 && kernel.grid->to_start.empty();
  if (is_last) kernel.finish();
  std::erase_if(resident_, [&](const auto& other) { return other.get() == &block; });
}

void Device::forget_all() {
  for (const auto& operation : pending_) operation->finish();
  resident_.clear();
  ready_.clear();
  pending_.clear();
  idle_ = 0;
}

void Device::run_until_done(const Operation& operation) {
  const Unseen unseen;
  try {
    runner_([&] {
      for (start_what_may(); !operation.is_done; start_what_may()) step();
    });
  } catch (const Fault&) {
    forget_all();
    throw;
  }
}

}  // namespace shardwise::emulator

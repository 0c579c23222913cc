// The emulated device: the operations that are queued, the blocks that are resident, and who goes on next.
#pragma once
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/emulator/block.h"
#include "tests/support/emulator/emulator.h"

namespace shardwise::emulator {

class Device {
 public:
  /// The device of this process: CUDA's functions name none.
  static Device& instance();

  void set(const Settings& settings);
  void set_runner(Runner runner) { runner_ = std::move(runner); }
  /// Adds an operation that has been queued in a stream.
  void add(const std::shared_ptr<Operation>& operation);
  /// Returns the operations that have not ended.
  const std::vector<std::shared_ptr<Operation>>& pending() const { return pending_; }
  /// Returns how many kernels were added.
  int64_t launches() const { return launches_; }
  /// Runs until the operation has ended. Errors: Fault; then everything that was queued is forgotten.
  void run_until_done(const Operation& operation);

  /// Of the running thread.
  Thread& current() { return *current_; }
  /// Leaves the running thread, which waits for something, until it may go on.
  void wait_in(State state, const void* site);
  /// The first function of every thread.
  static void run_thread();

 private:
  size_t pick(size_t count);
  bool may_start(const Operation& operation) const;
  std::vector<std::shared_ptr<Operation>> startable() const;
  void start_what_may();
  void start(const std::shared_ptr<Operation>& operation);
  void start_block(const std::shared_ptr<Operation>& kernel);
  void run_host_function(Operation& operation);
  void step();
  Thread& take_ready();
  void resume(Thread& thread);
  void leave(bool for_good);
  void end_block(Block& block);
  void forget_all();
  [[noreturn]] void throw_hang() const;

  Settings settings_;
  Runner runner_ = [](const std::function<void()>& run) { run(); };
  std::mt19937 random_;
  std::vector<std::shared_ptr<Operation>> pending_;
  Seats seats_;
  std::vector<std::unique_ptr<Block>> resident_;
  std::deque<Thread*> ready_;
  int64_t launches_ = 0;
  int idle_ = 0;  // steps in which threads only paused
  Context host_;
  Clock host_clock_ = Clock::current();
  Stack host_stack_;
  Thread* current_ = nullptr;
};

}  // namespace shardwise::emulator

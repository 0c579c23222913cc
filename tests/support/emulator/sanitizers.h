// What AddressSanitizer and ThreadSanitizer must be told of stacks that a program switches by itself.
//
// To ThreadSanitizer each CUDA thread is a thread of its own, and switching orders nothing. Only barriers,
// boundaries of kernels, streams, events and atomics do: what CUDA does not order is a race, in shared memory
// and in global memory. The emulator is compiled without -fsanitize=thread, because its own accesses are
// nobody's; then SHARDWISE_EMULATOR_TSAN is defined instead.
#pragma once
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SHARDWISE_EMULATOR_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_ignore_thread_begin();
void __tsan_ignore_thread_end();
}
#endif

namespace shardwise::emulator {

/// What a thread has seen of the others' writes.
class Clock {
 public:
  /// That of the running code.
  static Clock current();
  /// A new one, which has seen nothing. Takes 0.2 ms under ThreadSanitizer.
  static Clock create();
  /// Goes on with this clock.
  void enter() const;

 private:
  explicit Clock(void* fiber) : fiber_(fiber) {}
  void* fiber_;
};

/// An order between threads: who acquires has seen what those before have released.
class SyncPoint {
 public:
  void acquire();
  void release();

 private:
  [[maybe_unused]] char address_ = 0;
};

/// While it lives, accesses are nobody's.
class Unseen {
 public:
  Unseen();
  ~Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;
};

/// A stack, as AddressSanitizer knows it.
struct Stack {
  const void* begin = nullptr;
  size_t bytes = 0;
};
/// Announces a switch to `to`. `fake_stack` keeps the running code's, or is null if the code will not go on.
void before_switch(void** fake_stack, const Stack& to);
/// After a switch, on the new stack: restores `fake_stack`, and returns where it came from.
Stack after_switch(void* fake_stack);
/// Frees what earlier code has marked on the stack.
void unpoison(const Stack& stack);

}  // namespace shardwise::emulator

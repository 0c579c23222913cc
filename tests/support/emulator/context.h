// Stacks that a program switches between by itself: each emulated CUDA thread has one.
#pragma once
#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace shardwise::emulator {

/// Where the code on a stack was left.
class Context {
 public:
  /// The running code, once it switches away.
  Context() = default;
  /// Will call `entry`, which must not return, on the stack of `bytes` bytes that begins at `stack`.
  Context(char* stack, size_t bytes, void (*entry)());

  /// Leaves the running code in `from` and goes on in `to`.
  static void switch_between(Context& from, Context& to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace shardwise::emulator

#include "tests/support/emulator/context.h"

#include <cstdint>

#if defined(__x86_64__)
// Saves the registers that a call preserves. swapcontext also asks the kernel for the signal mask, at each
// switch: three times the time of a test.
extern "C" void shardwise_switch_stacks(void** from, void* to);
asm(R"(
.text
.globl shardwise_switch_stacks
.type shardwise_switch_stacks, @function
shardwise_switch_stacks:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size shardwise_switch_stacks, .-shardwise_switch_stacks
.section .note.GNU-stack,"",@progbits
.text
)");
#endif

namespace shardwise::emulator {

#if defined(__x86_64__)

Context::Context(char* stack, size_t bytes, void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  auto* top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15});
  *--top = nullptr;  // aligns the stack in `entry` as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Context::switch_between(Context& from, Context& to) {
  shardwise_switch_stacks(&from.stack_pointer_, to.stack_pointer_);
}

#else

Context::Context(char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void Context::switch_between(Context& from, Context& to) {
  swapcontext(&from.context_, &to.context_);
}

#endif

}  // namespace shardwise::emulator

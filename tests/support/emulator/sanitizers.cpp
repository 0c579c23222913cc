#include "tests/support/emulator/sanitizers.h"

#include "tests/support/emulator/emulator.h"

namespace shardwise::emulator {

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(SHARDWISE_EMULATOR_TSAN)
  return true;
#else
  return false;
#endif
}

#if defined(SHARDWISE_EMULATOR_TSAN)

/// A new clock has seen what its creator has. This one is made before main, and sees nothing of it.
void* const kCreator = __tsan_create_fiber(0);

Clock Clock::current() {
  return Clock(__tsan_get_current_fiber());
}

Clock Clock::create() {
  const Clock own = current();
  __tsan_switch_to_fiber(kCreator, __tsan_switch_to_fiber_no_sync);
  const Clock made(__tsan_create_fiber(0));
  own.enter();
  return made;
}

void Clock::enter() const {
  __tsan_switch_to_fiber(fiber_, __tsan_switch_to_fiber_no_sync);
}

void SyncPoint::acquire() {
  __tsan_acquire(&address_);
}

void SyncPoint::release() {
  __tsan_release(&address_);
}

Unseen::Unseen() {
  __tsan_ignore_thread_begin();
}

Unseen::~Unseen() {
  __tsan_ignore_thread_end();
}

#else

Clock Clock::current() {
  return Clock(nullptr);
}

Clock Clock::create() {
  return Clock(nullptr);
}

void Clock::enter() const {}
void SyncPoint::acquire() {}
void SyncPoint::release() {}
Unseen::Unseen() = default;
Unseen::~Unseen() = default;

#endif

#if defined(__SANITIZE_ADDRESS__)

void before_switch(void** fake_stack, const Stack& to) {
  __sanitizer_start_switch_fiber(fake_stack, to.begin, to.bytes);
}

Stack after_switch(void* fake_stack) {
  Stack from;
  __sanitizer_finish_switch_fiber(fake_stack, &from.begin, &from.bytes);
  return from;
}

void unpoison(const Stack& stack) {
  __asan_unpoison_memory_region(stack.begin, stack.bytes);
}

#else

void before_switch(void**, const Stack&) {}

Stack after_switch(void*) {
  return {};
}

void unpoison(const Stack&) {}

#endif

}  // namespace shardwise::emulator

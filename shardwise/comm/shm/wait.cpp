#include "shardwise/comm/shm/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace shardwise::comm::shm {
namespace {

// The futex word is the low half of the sequence. The flag is in a shared mapping, so the futex must not be
// PRIVATE.
uint32_t* futex_word(Flag& flag) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && sizeof(flag.sequence) == sizeof(uint64_t));
  return reinterpret_cast<uint32_t*>(&flag.sequence);
}

}  // namespace

WaitPolicy WaitPolicy::choose(int ranks, int cores) {
  using std::chrono::microseconds;
  if (ranks <= cores) return {microseconds(50), microseconds(2000)};
  return {microseconds(1), microseconds(500)};
}

// The sleeper counts itself, loads the sequence and sleeps. The waker stores the sequence and loads the
// count. All four are sequentially consistent, so at least one sees the other; the kernel compares the word
// again before it suspends the sleeper.
void sleep_on(Flag& flag, uint64_t seen, std::chrono::milliseconds limit) {
  flag.sleepers.fetch_add(1);
  if (flag.sequence.load() == seen) {
    const timespec time{limit.count() / 1000, (limit.count() % 1000) * 1'000'000};
    syscall(SYS_futex, futex_word(flag), FUTEX_WAIT, static_cast<uint32_t>(seen), &time, nullptr, 0);
  }
  flag.sleepers.fetch_sub(1);
}

void advance(Flag& flag, uint64_t sequence) {
  flag.sequence.store(sequence);
  if (flag.sleepers.load() != 0) wake_sleepers(flag);
}

void ring(Flag& flag) {
  flag.sequence.fetch_add(1);
  if (flag.sleepers.load() != 0) wake_sleepers(flag);
}

void wake_sleepers(Flag& flag) {
  syscall(SYS_futex, futex_word(flag), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace shardwise::comm::shm

#include "tests/support/emulator/builtins.h"

#include "tests/support/emulator/device.h"

namespace shardwise::emulator {
namespace {

Thread& current() {
  return Device::instance().current();
}

}  // namespace

const Place& place() {
  return current().place;
}

int lane() {
  return static_cast<int>(current().lane());
}

void barrier() {
  SyncPoint& point = current().block->barrier();
  point.release();
  Device::instance().wait_in(State::at_barrier, __builtin_return_address(0));
  point.acquire();
}

void warp_barrier(unsigned mask) {
  Thread& own = current();
  SyncPoint& point = own.block->warp_barrier(own.warp());
  own.mask = mask;
  point.release();
  Device::instance().wait_in(State::in_warp, __builtin_return_address(0));
  point.acquire();
}

const uint64_t* warp_values(unsigned mask, uint64_t own) {
  Thread& thread = current();
  thread.mask = mask;
  thread.own = own;
  Device::instance().wait_in(State::in_warp, __builtin_return_address(0));
  return thread.of_warp.data();
}

void pause() {
  Device::instance().wait_in(State::pausing, nullptr);
}

void* shared_memory(size_t bytes, const void* tag) {
  return current().block->shared_memory(bytes, tag);
}

}  // namespace shardwise::emulator

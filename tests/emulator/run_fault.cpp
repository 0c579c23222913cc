// Runs one case of faults.h, as `run_fault CASE ORDER SEED`. Prints "right", "wrong: N elements", or the
// fault that the emulator names; a sanitizer prints its own report. Built plain, with AddressSanitizer and
// UBSan, and with ThreadSanitizer.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "tests/emulator/device_array.h"
#include "tests/emulator/faults.h"
#include "tests/support/emulator/emulator.h"

namespace shardwise::emulator_faults {
namespace {

using emulator::DeviceArray;
using emulator::Order;

float number(size_t i) {
  return static_cast<float>(i);
}

float reversed(size_t i) {
  return static_cast<float>(i / kThreads * kThreads + kThreads - 1 - i % kThreads);
}

size_t run_reverse(bool waits) {
  const DeviceArray<float> in(4 * kThreads, number), out(4 * kThreads);
  reverse(out.data(), in.data(), 4, waits, nullptr);
  cudaDeviceSynchronize();
  return out.wrong(reversed);
}

size_t run_reverse_in_turn(bool waits) {
  const DeviceArray<float> in(4 * kThreads, number), out(4 * kThreads);
  reverse_in_turn(out.data(), in.data(), 4, waits, nullptr);
  cudaDeviceSynchronize();
  return out.wrong(reversed);
}

/// Of packs beyond the row, and of rows that are not aligned.
size_t run_copy(int more, int shift) {
  const DeviceArray<float> in(4 * kThreads, number), out(4 * kThreads, number);
  copy_packs(out.data(), in.data(), 4 * kThreads - 4, more, shift, nullptr);
  cudaDeviceSynchronize();
  return out.wrong(number);
}

size_t run_count(bool is_atomic) {
  const DeviceArray<unsigned> sum(1, [](size_t) { return 0u; });
  count(sum.data(), 8, is_atomic, nullptr);
  cudaDeviceSynchronize();
  return sum.wrong([](size_t) { return 8u * kThreads; });
}

size_t run_pass_on(bool releases, bool waits, bool sets) {
  const DeviceArray<float> from(kThreads), to(2 * kThreads);
  const DeviceArray<unsigned> flag(1, [](size_t) { return 0u; });
  pass_on(to.data(), from.data(), flag.data(), 3, releases, waits, sets, nullptr);
  cudaDeviceSynchronize();
  return to.wrong([](size_t i) { return number(i % kThreads); });
}

/// Blocks that wait for one that cannot start: one is resident at a time, and the last goes first.
size_t run_crowded() {
  emulator::set({.order = Order::backward, .resident_blocks = 1});
  return run_pass_on(true, true, true);
}

size_t run_warp(Divergence divergence) {
  const DeviceArray<float> out(kThreads);
  sum_of_warp(out.data(), divergence, nullptr);
  cudaDeviceSynchronize();
  return out.wrong([](size_t i) { return i < 32 ? 496.0f : 496.0f + 32 * 32; });
}

size_t run_lanes() {
  const DeviceArray<unsigned> out(kThreads);
  rank_lanes(out.data(), nullptr);
  cudaDeviceSynchronize();
  return out.wrong([](size_t i) {
    const auto lane = static_cast<unsigned>(i % 32);
    return 100 * (lane / 3) + (lane < 2 ? lane : lane - 2);
  });
}

/// CUDA uses the three lowest bits of each of the four lowest digits of a selector.
size_t run_bytes() {
  const auto hashed = [](size_t i) { return static_cast<unsigned>(i + 1) * 2654435761u; };
  const auto selector = [&](size_t i) { return hashed(i + kThreads); };
  const DeviceArray<unsigned> in(kThreads, hashed), selectors(kThreads, selector), out(kThreads);
  choose_bytes(out.data(), in.data(), selectors.data(), nullptr);
  cudaDeviceSynchronize();
  return out.wrong([&](size_t i) {
    unsigned chosen = 0;
    for (int byte = 0; byte < 4; ++byte) {
      const unsigned digit = selector(i) >> 4 * byte & 7, word = digit < 4 ? hashed(i) : ~hashed(i);
      chosen += (word >> digit % 4 * 8) % 256 << 8 * byte;
    }
    return chosen;
  });
}

/// Slices are copied to the device in one stream and doubled in another, through two slots in turn.
/// `waits_for_copy`, `waits_for_use`: the events between the streams. `waits_for_all`: the host, before it
/// reads.
size_t run_pipeline(bool waits_for_copy, bool waits_for_use, bool waits_for_all) {
  constexpr size_t kSlices = 6;
  cudaStream_t copies, products;
  cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&products, cudaStreamNonBlocking);
  cudaEvent_t copied, used[2];
  for (cudaEvent_t* event : {&copied, &used[0], &used[1]})
    cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  size_t wrong = 0;
  {
    const DeviceArray<float> in(kSlices * kThreads, number), slots(2 * kThreads), out(kSlices * kThreads);
    for (size_t slice = 0; slice < kSlices; ++slice) {
      float* const slot = slots.data() + slice % 2 * kThreads;
      if (waits_for_use && slice >= 2) cudaStreamWaitEvent(copies, used[slice % 2], 0);
      cudaMemcpyAsync(slot, in.data() + slice * kThreads, kThreads * sizeof(float), cudaMemcpyDefault,
                      copies);
      cudaEventRecord(copied, copies);
      if (waits_for_copy) cudaStreamWaitEvent(products, copied, 0);
      twice(out.data() + slice * kThreads, slot, kThreads, products);
      cudaEventRecord(used[slice % 2], products);
    }
    if (waits_for_all) cudaStreamSynchronize(products);
    wrong = out.wrong([](size_t i) { return 2 * number(i); });
    cudaDeviceSynchronize();
  }
  for (const cudaEvent_t event : {copied, used[0], used[1]}) cudaEventDestroy(event);
  for (const cudaStream_t stream : {copies, products}) cudaStreamDestroy(stream);
  return wrong;
}

const std::map<std::string, std::function<size_t()>> kCases = {
    {"reverse", [] { return run_reverse(true); }},
    {"no-first-barrier", [] { return run_reverse(false); }},
    {"reverse-in-turn", [] { return run_reverse_in_turn(true); }},
    {"no-second-barrier", [] { return run_reverse_in_turn(false); }},
    {"copy", [] { return run_copy(1, 0); }},
    {"out-of-bounds", [] { return run_copy(2, 0); }},
    {"misaligned", [] { return run_copy(0, 1); }},
    {"count", [] { return run_count(true); }},
    {"two-blocks-one-word", [] { return run_count(false); }},
    {"pass-on", [] { return run_pass_on(true, true, true); }},
    {"relaxed-flag", [] { return run_pass_on(false, true, true); }},
    {"no-barrier-before-flag", [] { return run_pass_on(true, false, true); }},
    {"no-flag", [] { return run_pass_on(true, true, false); }},
    {"crowded", run_crowded},
    {"warp", [] { return run_warp(Divergence::none); }},
    {"lanes", run_lanes},
    {"bytes", run_bytes},
    {"other-barrier", [] { return run_warp(Divergence::other_barrier); }},
    {"early-exit", [] { return run_warp(Divergence::early_exit); }},
    {"longer-loop", [] { return run_warp(Divergence::longer_loop); }},
    {"outside-mask", [] { return run_warp(Divergence::outside_mask); }},
    {"absent-lane", [] { return run_warp(Divergence::absent_lane); }},
    {"other-mask", [] { return run_warp(Divergence::other_mask); }},
    {"pipeline", [] { return run_pipeline(true, true, true); }},
    {"no-event-after-copy", [] { return run_pipeline(false, true, true); }},
    {"no-event-after-use", [] { return run_pipeline(true, false, true); }},
    {"no-wait-of-the-host", [] { return run_pipeline(true, true, false); }},
};

int run(const std::string& name, const std::string& order, unsigned seed) {
  const std::map<std::string, Order> orders = {
      {"forward", Order::forward}, {"backward", Order::backward}, {"random", Order::random}};
  emulator::set({.order = orders.at(order), .seed = seed});
  const size_t wrong = kCases.at(name)();
  if (wrong == 0) {
    std::puts("right");
  } else {
    std::printf("wrong: %zu elements\n", wrong);
  }
  return 0;
}

}  // namespace
}  // namespace shardwise::emulator_faults

int main(int count, char** words) {
  if (count != 4) return 2;
  try {
    return shardwise::emulator_faults::run(words[1], words[2], static_cast<unsigned>(std::atoi(words[3])));
  } catch (const shardwise::emulator::Fault& fault) {
    std::puts(fault.what());
    return 0;
  }
}

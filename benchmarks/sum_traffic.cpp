// Measures an upper bound for the speed of an in-place all_reduce: its sums alone, with one thread per core
// and no synchronization. Thread r sums slice r of all buffers into all of them, as two_shot does
// (shardwise/comm/shm).
//
//   bench_sum_traffic BYTES [THREADS]
//
// Prints the microseconds of the sums and of a copy of BYTES by each thread (medians over the repetitions of
// the slowest thread), and the bytes read and written per second by each. With at least two threads it also
// prints the round trip of a cache line between the first two cores: cores of a virtual machine share a cache
// only at times, depending on where its host places them.
#include <c10/core/ScalarType.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "benchmarks/median.h"
#include "shardwise/base/clock.h"
#include "shardwise/base/split.h"
#include "shardwise/comm/reduce.h"

namespace {

using namespace shardwise;

constexpr int kRepetitions = 101;

std::byte* new_buffer(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) std::perror("mmap"), std::exit(1);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
}

/// Returns the microseconds of `work(thread)` on all threads at once, each on its own core.
double time_of(int threads, const std::function<void(int thread)>& work) {
  std::vector<std::vector<double>> us(kRepetitions, std::vector<double>(size_t(threads)));
  std::barrier together(threads);
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([&, thread] {
      pin_to(thread);
      for (std::vector<double>& repetition : us) {
        together.arrive_and_wait();
        const base::Stopwatch watch;
        work(thread);
        repetition[size_t(thread)] = 1e3 * watch.milliseconds();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  std::vector<double> slowest;
  for (const std::vector<double>& repetition : us) slowest.push_back(std::ranges::max(repetition));
  return median(slowest);
}

/// Returns the nanoseconds of a round trip between two cores: two threads set a flag alternately.
double round_trip_ns() {
  constexpr int kTrips = 1000;
  alignas(64) std::atomic<int> turn{0};
  const double us = time_of(/*threads=*/2, [&](int thread) {
    for (int trip = 0; trip < kTrips; ++trip) {
      while (turn.load(std::memory_order_acquire) != thread) continue;
      turn.store(1 - thread, std::memory_order_release);
    }
  });
  return 1e3 * us / kTrips;
}

void print(const char* what, double us, double moved_bytes) {
  std::printf("%-8s %10.2f us %8.1f GB/s\n", what, us, moved_bytes / us / 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t bytes = argc > 1 ? std::atoll(argv[1]) : 0;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  if (argc > 3 || bytes < 64 || bytes % 4 != 0 || threads < 1 || threads > 64) {
    std::fprintf(stderr, "bench_sum_traffic: BYTES [THREADS]: bytes of fp32, threads from 1 to 64\n");
    return 2;
  }
  std::vector<std::byte*> buffers, copies;
  for (int thread = 0; thread < threads; ++thread) {
    buffers.push_back(new_buffer(size_t(bytes)));
    copies.push_back(new_buffer(size_t(bytes)));
  }
  const auto kernel = comm::reduce_kernel(at::kFloat, comm::Reduce::sum);
  const base::Split slices = base::Split::even("sums", bytes / 4, threads);
  const double sums = time_of(threads, [&](int thread) {
    const base::Range range = slices.range(thread);
    std::vector<const void*> sources;
    std::vector<void*> targets;
    for (std::byte* buffer : buffers) {
      sources.push_back(buffer + 4 * range.begin);
      targets.push_back(buffer + 4 * range.begin);
    }
    kernel(sources.data(), threads, targets.data(), threads, range.size());
  });
  const double copy = time_of(threads, [&](int thread) {
    std::memcpy(copies[size_t(thread)], buffers[size_t(thread)], size_t(bytes));
  });
  const double moved = 2. * double(threads) * double(bytes);  // every buffer is read and written once
  print("sums", sums, moved);
  print("memcpy", copy, moved);
  if (threads > 1) std::printf("%-8s %10.0f ns to another core and back\n", "line", round_trip_ns());
}

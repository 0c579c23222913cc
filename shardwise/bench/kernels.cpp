#include "shardwise/bench/kernels.h"

#include "shardwise/bench/kernel_cases.h"
#include "shardwise/bench/synchronizer.h"

namespace shardwise::bench {

namespace {

KernelMeasured measure_case(const KernelCase& one, const KernelBench& bench, at::ScalarType dtype,
                            const Synchronizer& synchronizer) {
  const at::Tensor from = random_tensor({bench.rows, bench.width}, dtype), to = from.clone();
  const std::vector<TimedCall> calls{{"ours", [&] { one.ours(); }, {}},
                                     {"torch", [&] { one.torch(); }, {}},
                                     {"copy", [&] { to.copy_(from); }, {}}};
  const std::vector<Measured> times = measure(calls, CacheState::warm, bench.seconds, synchronizer);
  return {.name = one.name,
          .dtype = dtype,
          .bytes = one.bytes,
          .copy_bytes = 2 * static_cast<int64_t>(from.nbytes()),
          .ours = times[0],
          .torch = times[1],
          .copy = times[2]};
}

}  // namespace

std::vector<KernelMeasured> measure_kernels(const KernelBench& bench, const comm::Group& group,
                                            const OnKernelProgress& on_progress) {
  Synchronizer synchronizer = synchronizer_of(group);
  std::vector<KernelMeasured> measured;
  if (group.rank() == 0) {
    synchronizer.after_repetition = [&](int64_t done, int64_t repetitions) {
      on_progress(measured.size(), done, repetitions);
    };
  }
  for (const at::ScalarType dtype : bench.dtypes) {
    for (const std::string& family : bench.families) {
      for (const KernelCase& one : kernel_cases(family, bench.rows, bench.width, dtype))
        measured.push_back(measure_case(one, bench, dtype, synchronizer));
    }
  }
  return measured;
}

}  // namespace shardwise::bench

#include "shardwise/cli/bench_comm.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstring>

#include "shardwise/cli/bench_synchronizer.h"

namespace shardwise::cli {
namespace {

/// The tensors of one size. They start as zeros, so repeated sums stay zero; rewritten tensors hold ones,
/// which one call sums to the number of ranks. Nothing overflows.
struct Buffers {
  at::Tensor registered, unregistered, from, to;

  Buffers(int64_t bytes, at::ScalarType dtype, const comm::Group& group) {
    const int64_t numel = bytes / int64_t(c10::elementSize(dtype));
    registered = group.empty({numel}, dtype);
    for (at::Tensor* x : {&unregistered, &from, &to})
      *x = at::empty({numel}, at::TensorOptions().dtype(dtype));
    for (const at::Tensor* each : {&registered, &unregistered, &from, &to})
      std::memset(each->mutable_data_ptr(), 0, each->nbytes());
  }
};

std::function<void()> rewriting(const at::Tensor& x) {
  return [data = x.mutable_data_ptr(), bytes = int64_t(x.nbytes()),
          is_bf16 = x.scalar_type() == at::kBFloat16] { write_ones(data, bytes, is_bf16); };
}

std::vector<TimedCall> timed_calls(Buffers& b, const comm::Group& group) {
  const auto reducing = [&group](at::Tensor& x) { return [&group, &x] { group.all_reduce_(x); }; };
  const auto copying = [to = b.to.mutable_data_ptr(), from = b.from.const_data_ptr(),
                        bytes = b.from.nbytes()] { std::memcpy(to, from, bytes); };
  return {{"all_reduce", reducing(b.registered), rewriting(b.registered)},
          {"all_reduce_unregistered", reducing(b.unregistered), rewriting(b.unregistered)},
          {"memcpy", copying, rewriting(b.from)}};
}

}  // namespace

std::vector<CommPoint> measure_comm(const CommBench& bench, const comm::Group& group,
                                    const std::function<void(const std::string&)>& show) {
  Synchronizer synchronizer = synchronizer_of(group);
  const size_t total = bench.sizes.size() * bench.states.size();
  std::vector<CommPoint> points;
  for (const int64_t bytes : bench.sizes) {
    for (const CacheState state : bench.states) {
      if (group.rank() == 0) {
        synchronizer.after_repetition = [&](int64_t done, int64_t repetitions) {
          show(fmt::format("bench comm: {} {}, point {} of {}, repetition {} of {}", size_text(bytes),
                           name_of(state), points.size() + 1, total, done, repetitions));
        };
      }
      Buffers buffers(bytes, bench.dtype, group);
      points.push_back(
          {bytes, state, measure(timed_calls(buffers, group), state, bench.seconds, synchronizer)});
    }
  }
  return points;
}

}  // namespace shardwise::cli

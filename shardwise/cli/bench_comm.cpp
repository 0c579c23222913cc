#include "shardwise/cli/bench_comm.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <cstring>

#include "shardwise/cli/bench_meeting.h"

namespace shardwise::cli {
namespace {

/// The tensors of a size. All begin as zeros, whose sum is zero however often they are added up; where they
/// are rewritten, with ones, a call makes of them no more than the number of ranks. Nothing overflows.
struct Buffers {
  at::Tensor arena, foreign, from, to;

  Buffers(int64_t bytes, at::ScalarType dtype, const comm::Group& group) {
    const int64_t numel = bytes / int64_t(c10::elementSize(dtype));
    arena = group.empty({numel}, dtype);
    for (at::Tensor* own : {&foreign, &from, &to})
      *own = at::empty({numel}, at::TensorOptions().dtype(dtype));
    for (const at::Tensor* each : {&arena, &foreign, &from, &to})
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
  return {{"all_reduce", reducing(b.arena), rewriting(b.arena)},
          {"all_reduce_unregistered", reducing(b.foreign), rewriting(b.foreign)},
          {"memcpy", copying, rewriting(b.from)}};
}

}  // namespace

std::vector<CommPoint> measure_comm(const CommBench& bench, const comm::Group& group,
                                    const std::function<void(const std::string&)>& show) {
  Meeting meeting = meeting_of(group);
  const size_t all = bench.sizes.size() * bench.uses.size();
  std::vector<CommPoint> points;
  for (const int64_t bytes : bench.sizes) {
    for (const BufferUse use : bench.uses) {
      if (group.rank() == 0) {
        meeting.after_round = [&](int64_t done, int64_t rounds) {
          show(fmt::format("bench comm: {} {}, {} of {} points, round {} of {}", size_text(bytes),
                           name_of(use), points.size() + 1, all, done, rounds));
        };
      }
      Buffers buffers(bytes, bench.dtype, group);
      points.push_back({bytes, use, measure(timed_calls(buffers, group), use, bench.seconds, meeting)});
    }
  }
  return points;
}

}  // namespace shardwise::cli

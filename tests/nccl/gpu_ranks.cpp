// The program that nccl_test starts. `gpu_ranks N` checks every collective of Group on N ranks with one GPU
// each, `gpu_ranks N shared` on N ranks that share the first GPU. In `gpu_ranks N silent CALLS` the last of
// those ranks calls all_reduce CALLS times, the others once more. `gpu_ranks device-error` prints why there
// is no GPU, and `gpu_ranks asked-too-early` asks ATen for CUDA before that.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "shardwise/base/error.h"
#include "shardwise/comm/nccl/nccl.h"
#include "shardwise/comm/work.h"
#include "shardwise/launch/launch.h"
#include "shardwise/launch/process_group.h"
#include "shardwise/parallel/collectives.h"
#include "tests/comm/values.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::launch;
namespace raw = parallel::raw;
using namespace shardwise::testing;
using base::Split;

/// All dtypes but int16, which NCCL does not support.
constexpr at::ScalarType kNcclDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong,
                                          at::kInt,    at::kChar,  at::kByte,     at::kBool};

bool is_bitwise(Reduce reduce) {
  return reduce == Reduce::bit_and || reduce == Reduce::bit_or || reduce == Reduce::bit_xor;
}

enum class Gpus { one_each, shared };

/// Returns a group of all ranks. NCCL rejects two ranks of one node on one GPU, so ranks that share a GPU
/// each say that they are on a node of their own; they then communicate over sockets.
Group connect(const Group& bootstrap_group, Gpus gpus, std::chrono::milliseconds timeout = kTimeout) {
  nccl::ConnectOptions options(bootstrap_group);
  options.timeout = timeout;
  if (gpus == Gpus::shared) {
    setenv("NCCL_HOSTID", c10::str("node of rank ", bootstrap_group.rank()).c_str(), /*overwrite=*/1);
    options.device = 0;
  }
  return nccl::connect(options);
}

/// Returns the unit roundoff of a floating-point dtype.
double unit_roundoff(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 0x1p-53;
  if (dtype == at::kFloat) return 0x1p-24;
  return dtype == at::kHalf ? 0x1p-11 : 0x1p-8;
}

/// The checks that every rank runs. Sums are exact in every dtype, so their order does not matter.
class OnGpu : public ::testing::TestWithParam<at::ScalarType> {
 public:
  static const Group* group;  // set by main, like the CPU group of the same ranks
  static const Group* cpu_group;
  static Gpus gpus;

 protected:
  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
  at::Tensor local(at::IntArrayRef sizes) const { return of(rank(), sizes); }
  at::Tensor of(int rank, at::IntArrayRef sizes) const {
    return value(sizes, rank, GetParam()).to(group->device());
  }
  at::Tensor sum(at::IntArrayRef sizes) const { return reduced(sizes, size(), Reduce::sum, GetParam()); }
  /// Returns the result of all_gather: each rank's rows hold that rank's values.
  at::Tensor gathered(const Split& split, int64_t columns) const {
    std::vector<at::Tensor> shards;
    for (int peer = 0; peer < size(); ++peer)
      shards.push_back(value({split.range(peer).size(), columns}, peer, GetParam()));
    return at::cat(shards, 0);
  }
  static void expect(const at::Tensor& x, const at::Tensor& expected) {
    EXPECT_EQ(x.device(), group->device());
    EXPECT_TRUE(equals(x.cpu(), expected));
  }
  /// NCCL multiplies each x by 1 / t, in the dtype, and adds: t + 1 roundings, and one of the reference.
  void expect_average(const at::Tensor& x, at::IntArrayRef sizes) const {
    const at::Tensor exact = reduced(sizes, size(), Reduce::sum, at::kDouble).div(size());
    const at::Tensor limit = exact * ((size() + 2) * unit_roundoff(GetParam()));
    EXPECT_TRUE((x.cpu().to(at::kDouble) - exact).abs().le(limit).all().item<bool>()) << GetParam();
  }
  /// Returns an even split, an uneven one, and one with empty shards.
  std::vector<Split> splits() const {
    return {Split::even("rows", 2 * size(), size()), Split::even("rows", 3 * size() + 1, size()),
            Split::even("rows", 1, size())};
  }
};

const Group* OnGpu::group = nullptr;
const Group* OnGpu::cpu_group = nullptr;
Gpus OnGpu::gpus = Gpus::one_each;

TEST_P(OnGpu, AllReduce) {
  for (const Reduce reduce : kReduces) {
    if (!supports(reduce, GetParam())) continue;
    if (is_bitwise(reduce)) {
      if (size() > 1) {
        EXPECT_THROW(group->all_reduce(local({7}), reduce), c10::ValueError);
      }
      continue;
    }
    if (reduce == Reduce::average) {
      expect_average(group->all_reduce(local({7, 3}), reduce), {7, 3});
      continue;
    }
    expect(group->all_reduce(local({7, 3}), reduce), reduced({7, 3}, size(), reduce, GetParam()));
    at::Tensor x = local({3, 5}).t();
    group->all_reduce_(x, reduce);
    expect(x, reduced({3, 5}, size(), reduce, GetParam()).t());
  }
}

TEST_P(OnGpu, AllGatherAndReduceScatter) {
  for (const Split& split : splits()) {
    const int64_t n = split.range(rank()).size(), begin = split.range(rank()).begin;
    const auto local_rows = [&](const at::Tensor& full, int64_t dim) { return full.narrow(dim, begin, n); };
    expect(group->all_gather(local({n, 3}), split), gathered(split, 3));
    expect(group->all_gather(local({n, 3}).t(), split, 1), gathered(split, 3).t());
    expect(group->reduce_scatter(local({split.size(), 3}), split), local_rows(sum({split.size(), 3}), 0));
    expect(group->reduce_scatter(local({3, split.size()}), split, 1), local_rows(sum({3, split.size()}), 1));
    const auto gathering = group->all_gather_chunked(local({n, 3}), split);
    for (int peer = 0; peer < size(); ++peer) gathering->wait_chunk(peer);
    expect(gathering->output(), gathered(split, 3));
    const at::Tensor gathered_later = group->empty({split.size(), 3}, GetParam());
    group->all_gather_out_async(gathered_later, local({n, 3}), split)->wait();
    expect(gathered_later, gathered(split, 3));
    if (size() == 1) continue;
    const at::Tensor x = group->empty({split.size(), 3}, GetParam()).copy_(local({split.size(), 3}));
    const auto scattering = group->reduce_scatter_chunked(x, split);
    for (int i = 0; i < size(); ++i) scattering->chunk_ready(i);
    at::Tensor out = group->empty({n, 3}, GetParam());
    scattering->wait(out);
    expect(out, local_rows(sum({split.size(), 3}), 0));
  }
}

TEST_P(OnGpu, BroadcastScatterAndGather) {
  for (int root = 0; root < size(); ++root) {
    at::Tensor x = local({3, 4}).t();
    group->broadcast_(x, root);
    expect(x, value({3, 4}, root, GetParam()).t());
    expect(group->scatter(local({2 * size(), 3}), root),
           value({2 * size(), 3}, size() == 1 ? 0 : root, GetParam()).narrow(0, 2 * rank(), 2));
    const at::Tensor full = group->gather(local({2, 3}), root);
    EXPECT_EQ(full.defined(), rank() == root);
    if (rank() == root) expect(full, gathered(Split::even("rows", 2 * size(), size()), 3));
  }
}

TEST_P(OnGpu, AllToAllAndMessages) {
  std::vector<at::Tensor> blocks;
  for (int peer = 0; peer < size(); ++peer)
    blocks.push_back(value({2 * size(), 3}, peer, GetParam()).narrow(0, 2 * rank(), 2));
  expect(group->all_to_all(local({2 * size(), 3})), at::cat(blocks, 0));
  if (size() == 1) return;
  at::Tensor received = group->empty({5}, GetParam());
  if (rank() == 0) group->send(local({5}), 1);
  if (rank() == 1) group->recv_(received, 0);
  if (rank() == 1) expect(received, value({5}, 0, GetParam()));
  if (rank() == 0) {
    EXPECT_THROW(group->send(received, 1, /*tag=*/3), c10::ValueError);
  }
  group->barrier();
}

/// A conjugate collective with its input's shape on this rank.
struct Conjugate {
  at::DimVector sizes;
  std::function<at::Tensor(const at::Tensor&, const Group&)> apply;
};

/// Each conjugate collective gives the bits of the CPU group, whose tests compare with closed forms.
TEST_P(OnGpu, ConjugateCollectives) {
  if (!at::isFloatingType(GetParam())) return;
  const Split rows = Split::even("rows", 3 * size() + 1, size());
  const Split even = Split::even("even", 2 * size(), size());
  const Split columns = Split::even("columns", 3 * size(), size());
  const int64_t n = rows.range(rank()).size();
  const Conjugate conjugates[] = {
      {{n, 3}, [&](auto& x, auto& on) { return raw::gather_then_slice(x, rows, 0, on); }},
      {{n, 3}, [&](auto& x, auto& on) { return raw::gather_then_reduce(x, rows, 0, on); }},
      {{3, n}, [&](auto& x, auto& on) { return raw::gather_then_reduce(x, rows, 1, on); }},
      {{rows.size(), 3}, [&](auto& x, auto& on) { return raw::slice_then_gather(x, rows, 0, on); }},
      {{rows.size(), 3}, [&](auto& x, auto& on) { return raw::slice_then_pad(x, rows, 0, on); }},
      {{5, 3}, [&](auto& x, auto& on) { return raw::reduce_then_reduce(x, on); }},
      {{2, 3 * size()}, [&](auto& x, auto& on) { return raw::exchange(x, even, 0, columns, 1, on); }}};
  for (const auto& [sizes, apply] : conjugates) {
    at::Tensor x = local(sizes).set_requires_grad(true);
    at::Tensor expected_x = x.detach().cpu().set_requires_grad(true);
    const at::Tensor y = apply(x, *group), expected_y = apply(expected_x, *cpu_group);
    expect(y, expected_y);
    const at::Tensor gradient = value(y.sizes(), rank() + 1, GetParam());
    y.backward(gradient.to(group->device()));
    expected_y.backward(gradient);
    expect(x.grad(), expected_x.grad());
  }
}

/// Two groups of the same ranks are independent, and one may end first.
TEST(OnGpuGroups, TwoAtOnce) {
  at::Tensor x = OnGpu::group->empty({7}, at::kFloat).fill_(1);
  {
    const Group second = connect(*OnGpu::cpu_group, OnGpu::gpus);
    second.all_reduce_(x);
    OnGpu::group->all_reduce_(x);
    second.all_reduce_(x);
  }
  OnGpu::group->all_reduce_(x);
  EXPECT_TRUE(equals(x.cpu(), at::full({7}, std::pow(OnGpu::group->size(), 4), at::kFloat)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, OnGpu, ::testing::ValuesIn(kNcclDtypes));

int run_tests(const LaunchContext& context, Gpus gpus) {
  const Group bootstrap_group = init_process_group(context);
  const Group group = connect(bootstrap_group, gpus);
  OnGpu::group = &group;
  OnGpu::cpu_group = &bootstrap_group;
  OnGpu::gpus = gpus;
  const int failed = RUN_ALL_TESTS();
  bootstrap_group.barrier();  // rank 0 serves the store until all ranks are done
  return failed;
}

/// The last rank calls all_reduce `calls` times; the others call once more, and wait for it.
int run_silent(const LaunchContext& context, int calls) {
  const Group bootstrap_group = init_process_group(context);
  const Group group = connect(bootstrap_group, Gpus::shared, std::chrono::seconds(5));
  const bool is_silent = group.rank() + 1 == group.size();
  for (int call = 0; call < calls + (is_silent ? 0 : 1); ++call)
    group.all_reduce(group.empty({1}, at::kFloat)).cpu();
  bootstrap_group.barrier();
  return 0;
}

/// Expects an error without any GPU, and prints it.
int print_device_error() {
  try {
    nccl::device_count();
  } catch (const c10::ValueError& error) {
    std::fprintf(stderr, "%s\n", base::one_line(error).c_str());
    return 0;
  }
  return 1;
}

int run(const std::vector<std::string>& arguments) {
  const std::string& mode = arguments.at(1);
  if (mode == "asked-too-early") at::globalContext().hasCUDA();
  if (mode == "asked-too-early" || mode == "device-error") return print_device_error();
  const LaunchContext context = launch_context_from_env();
  if (context.launcher == LaunchContext::Launcher::self) return launch_ranks(std::stoi(mode), arguments);
  const std::string sharing = arguments.size() > 2 ? arguments[2] : "";
  if (sharing == "silent") return run_silent(context, std::stoi(arguments.at(3)));
  return run_tests(context, sharing == "shared" ? Gpus::shared : Gpus::one_each);
}

}  // namespace
}  // namespace shardwise::comm

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  testing::InitGoogleTest(&argc, argv);
  try {
    return shardwise::comm::run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", shardwise::base::one_line(error).c_str());
    return 1;
  }
}

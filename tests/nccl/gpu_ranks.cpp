// The program that nccl_test starts. `gpu_ranks N` checks every collective of Group on N ranks with one GPU
// each; `gpu_ranks device-error` prints why there is no GPU, and `gpu_ranks asked-too-early` asks ATen for
// CUDA before that.
#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "shardwise/base/error.h"
#include "shardwise/comm/nccl/nccl.h"
#include "shardwise/comm/work.h"
#include "shardwise/launch/launch.h"
#include "shardwise/launch/process_group.h"
#include "tests/comm/values.h"

namespace shardwise::comm {
namespace {

using namespace shardwise::launch;
using namespace shardwise::testing;
using base::Split;

/// All dtypes but int16, which NCCL does not support.
constexpr at::ScalarType kNcclDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong,
                                          at::kInt,    at::kChar,  at::kByte,     at::kBool};

bool is_bitwise(Reduce reduce) {
  return reduce == Reduce::bit_and || reduce == Reduce::bit_or || reduce == Reduce::bit_xor;
}

/// The checks that every rank runs. Sums are exact in every dtype, so their order does not matter.
class OnGpu : public ::testing::TestWithParam<at::ScalarType> {
 public:
  static const Group* group;  // set by main

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
  /// Returns an even split, an uneven one, and one with empty shards.
  std::vector<Split> splits() const {
    return {Split::even("rows", 2 * size(), size()), Split::even("rows", 3 * size() + 1, size()),
            Split::even("rows", 1, size())};
  }
};

const Group* OnGpu::group = nullptr;

TEST_P(OnGpu, AllReduce) {
  for (const Reduce reduce : kReduces) {
    if (!supports(reduce, GetParam())) continue;
    if (is_bitwise(reduce)) {
      if (size() > 1) {
        EXPECT_THROW(group->all_reduce(local({7}), reduce), c10::ValueError);
      }
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

INSTANTIATE_TEST_SUITE_P(Dtypes, OnGpu, ::testing::ValuesIn(kNcclDtypes));

int run_tests(const LaunchContext& context) {
  const Group bootstrap_group = init_process_group(context);
  const Group group = nccl::connect(nccl::ConnectOptions(bootstrap_group));
  OnGpu::group = &group;
  const int failed = RUN_ALL_TESTS();
  bootstrap_group.barrier();  // rank 0 serves the store until all ranks are done
  return failed;
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
  return context.launcher == LaunchContext::Launcher::self ? launch_ranks(std::stoi(arguments[1]), arguments)
                                                           : run_tests(context);
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

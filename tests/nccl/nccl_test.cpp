// Groups of ranks with one GPU each. The rendezvous and the errors without a GPU are tested on every machine;
// the collectives (gpu_ranks.cpp) only if this process sees a GPU. Otherwise the suite NcclOnGpus skips
// itself, which ctest lists as not run.
#include <gtest/gtest.h>

#include <cstdio>

#include "shardwise/comm/nccl/nccl.h"
#include "shardwise/comm/nccl/store.h"
#include "tests/launch/program.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::comm::nccl::nccl_test {
namespace {

using namespace shardwise::testing;
using test::contains;
using test::error_text;

constexpr std::chrono::milliseconds kLimit{20'000};

TEST(Nccl, IsBuiltIn) {
  EXPECT_TRUE(is_built_in());
}

TEST(NcclStore, IsServedByRankZeroAndReachedByAll) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](const Group& group) {
      const auto store = open_store(group, "127.0.0.1", kLimit);
      store->set(std::to_string(group.rank()), "of rank " + std::to_string(group.rank()));
      for (int peer = 0; peer < group.size(); ++peer) {
        EXPECT_EQ(store->get_to_str(std::to_string(peer)), "of rank " + std::to_string(peer));
      }
      group.barrier();  // rank 0 serves the store until it releases it
    });
  }
}

TEST(NcclStore, AnUnreachableAddressIsAnErrorOnAllRanks) {
  on_ranks(2, [](const Group& group) {
    const std::string error = error_text<base::CommError>(
        [&] { open_store(group, "no-such-host.invalid", std::chrono::milliseconds(1000)); });
    EXPECT_PRED2(contains, error, "connect #0: rank 0 cannot serve the store at no-such-host.invalid");
    EXPECT_PRED2(contains, error, "; rank " + std::to_string(group.rank()) + " waited");
  });
}

TEST(Nccl, AMissingDeviceIsTheSameErrorOnAllRanks) {
  std::vector<std::string> errors(3);
  on_ranks(3, [&](const Group& group) {
    ConnectOptions options(group);
    options.device = group.rank() == 0 ? 0 : 4096;
    errors[size_t(group.rank())] = error_text([&] { connect(options); });
    group.barrier();  // the bootstrap group still works
  });
  EXPECT_PRED2(contains, errors[0], "connect: NCCL");
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], errors[0]);
}

/// Returns why there is no GPU, or an empty string if there is one.
std::string gpu_error() {
  try {
    device_count();
    return {};
  } catch (const c10::ValueError& error) {
    return base::without_code(base::one_line(error));
  }
}

class NoGpu : public ::testing::Test {
  void TestBody() override {
    EXPECT_TRUE(contains(gpu_error(), "connect: NCCL needs one GPU per rank; got none: ") ||
                contains(gpu_error(), "connect: the NCCL plugin must load; got "))
        << gpu_error();
    on_ranks(2, [](const Group& group) {
      EXPECT_EQ(error_text([&] { connect(ConnectOptions(group)); }), gpu_error());
    });
  }
};

/// ATen caches whether it has CUDA. A process that asked too early gets an error that says so.
class AskedTooEarly : public ::testing::Test {
  void TestBody() override {
    Program program({GPU_RANKS, "asked-too-early"});
    EXPECT_EQ(exit_code(program.wait(60)), 0);
    EXPECT_PRED2(contains, program.errors(), "ATen was asked for CUDA before the plugin was opened");
  }
};

class OnGpus : public ::testing::Test {
 public:
  explicit OnGpus(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
    arguments_.insert(arguments_.begin(), GPU_RANKS);
  }

 private:
  void TestBody() override {
    Program program(arguments_);
    EXPECT_EQ(exit_code(program.wait(300)), 0) << program.output() << program.errors();
  }
  std::vector<std::string> arguments_;
};

/// The last of two ranks calls all_reduce `calls` times and rank 0 once more: torch's watchdog ends rank 0
/// after the timeout of 5 s.
class SilentRank : public ::testing::Test {
 public:
  explicit SilentRank(int calls) : calls_(calls) {}

 private:
  void TestBody() override {
    Program program({GPU_RANKS, "2", "silent", std::to_string(calls_)});
    EXPECT_EQ(exit_code(program.wait_within(30)), 1) << program.output();
    EXPECT_PRED2(contains, program.errors(), "Watchdog caught collective operation timeout");
    EXPECT_PRED2(contains, program.errors(), "shardwise: rank 0 (pid ");
    EXPECT_PRED2(contains, program.errors(), " was killed by signal 6 (Aborted)");
  }
  int calls_;
};

class WithoutGpus : public ::testing::Test {
  void TestBody() override { GTEST_SKIP() << "no collectives ran on GPUs: " << gpu_error(); }
};

template <typename Make>
void add(const char* suite, const std::string& name, Make make) {
  ::testing::RegisterTest(suite, name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [make]() -> ::testing::Test* { return make(); });
}

/// Registers the tests for this machine, with or without GPUs. Both have the same suites, because ctest lists
/// them when it links the program.
bool register_by_machine() {
  constexpr const char *kMachine = "NcclOnThisMachine", *kGpus = "NcclOnGpus";
  const std::string error = gpu_error();
  if (!contains(error, "plugin must load")) add(kMachine, "AskedTooEarly", [] { return new AskedTooEarly; });
  if (!error.empty()) {
    add(kMachine, "MissingGpuIsAnErrorOnAllRanks", [] { return new NoGpu; });
    add(kGpus, "Collectives", [] { return new WithoutGpus; });
    return false;
  }
  using Arguments = std::vector<std::string>;
  for (int ranks = 1; ranks <= device_count(); ++ranks) {
    const std::string count = std::to_string(ranks);
    add(kGpus, "CollectivesOnRanks" + count, [count] { return new OnGpus(Arguments{count}); });
  }
  for (const char* count : {"2", "3", "4"})
    add(kGpus, c10::str("Collectives", count, "RanksShareAGpu"), [count] {
      return new OnGpus(Arguments{count, "shared"});
    });
  for (const int calls : {0, 1})
    add(kGpus, "ARankThatIsSilentAfter" + std::to_string(calls), [calls] { return new SilentRank(calls); });
  return true;
}

const bool has_gpu = register_by_machine();

}  // namespace
}  // namespace shardwise::comm::nccl::nccl_test

// Every collective call × reduction × dtype × ranks × size × layout × even or uneven pieces, with its result:
// covering arrays of that space in `make test`, the full space in `make test-full`.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "shardwise/base/error.h"
#include "tests/comm/collective_calls.h"
#include "tests/comm/threads.h"
#include "tests/support/covering.h"
#include "tests/support/extent.h"

namespace shardwise::comm::grid_test {
namespace {

using namespace shardwise::testing;

/// The dimensions, in the order of full_space.
enum class Dimension { call, path, reduce, dtype, ranks, numel, layout, pieces };

constexpr int kSizes[] = {1, 2, 3, 4, 8};
constexpr const char* kLayoutNames[] = {"unregistered", "strided", "in heap", "strided in heap"};

struct Numel {
  const char* name;
  int64_t bytes, more;
  int64_t of(at::ScalarType dtype) const { return bytes / int64_t(c10::elementSize(dtype)) + more; }
};
constexpr Numel kNumels[] = {
    {"0", 0, 0},       {"1", 0, 1},           {"odd", 0, 1009},        {"page - 1", 4096, -1},
    {"page", 4096, 0}, {"page + 1", 4096, 1}, {"4 MB + 3", 4 << 20, 3}};
constexpr const char* kLargest = "4 MB + 3";

std::vector<CollectiveCall> calls_with_content() {
  std::vector<CollectiveCall> chosen;
  std::ranges::copy_if(collective_calls(), std::back_inserter(chosen),
                       [](const CollectiveCall& call) { return call.traits.has_content; });
  return chosen;
}

template <typename Range, typename Name>
std::vector<std::string> names(const Range& values, const Name& name) {
  std::vector<std::string> names;
  for (const auto& value : values) names.emplace_back(name(value));
  return names;
}

void exclude_unsupported(Space& space, const CollectiveCall& call) {
  const auto exclude = [&](const char* dimension, const std::string& value) {
    space.exclude({"call", call.name}, {dimension, value});
  };
  for (const Reduce reduce : kReduces) {
    if (!call.traits.reduces && reduce != Reduce::sum) exclude("reduce", name(reduce));
  }
  if (!call.traits.is_group_call) exclude("path", "without heap");
  if (!call.traits.supports_uneven) exclude("pieces", "uneven");
  if (call.traits.needs_peer) exclude("ranks", "1");
}

Space full_space() {
  Space space;
  const auto dtype_name = [](at::ScalarType dtype) { return c10::toString(dtype); };
  space.add("call", names(calls_with_content(), [](const CollectiveCall& call) { return call.name; }));
  space.add("path", {"heap", "without heap"});
  space.add("reduce", names(kReduces, [](Reduce reduce) { return name(reduce); }));
  space.add("dtype", names(kDtypes, dtype_name));
  space.add("ranks", names(kSizes, [](int ranks) { return std::to_string(ranks); }));
  space.add("elements", names(kNumels, [](const Numel& numel) { return numel.name; }));
  space.add("layout", {std::begin(kLayoutNames), std::end(kLayoutNames)});
  space.add("pieces", {"even", "uneven"});
  for (const CollectiveCall& call : calls_with_content()) exclude_unsupported(space, call);
  for (const Reduce reduce : kReduces) {
    for (const at::ScalarType dtype : kDtypes) {
      if (!supports(reduce, dtype)) space.exclude({"reduce", name(reduce)}, {"dtype", dtype_name(dtype)});
    }
  }
  space.exclude({"ranks", "1"}, {"pieces", "uneven"});
  space.exclude({"ranks", "1"}, {"path", "without heap"});
  space.exclude({"elements", "0"}, {"pieces", "uneven"});
  return space;
}

size_t value_of(const Combination& combination, Dimension dimension) {
  return size_t(combination[size_t(dimension)]);
}

Case case_of(const Combination& combination, const TestGroup& at) {
  const auto value = [&](Dimension dimension) { return value_of(combination, dimension); };
  const at::ScalarType dtype = kDtypes[value(Dimension::dtype)];
  return {at,
          {dtype, kReduces[value(Dimension::reduce)], kSizes[value(Dimension::ranks)]},
          kInputLayouts[value(Dimension::layout)],
          kNumels[value(Dimension::numel)].of(dtype),
          /*even=*/value(Dimension::pieces) == 0,
          /*use_heap=*/value(Dimension::path) == 0};
}

/// Runs `body` on each rank of a group. An error fails the test and aborts the group.
void on_test_groups(int ranks, const std::function<void(const TestGroup&)>& body) {
  on_threads(ranks, [&](int rank, const std::string& job) {
    at::set_num_threads(1);
    const TestGroup at = connect_test_group(options(job, rank, ranks, /*timeout_ms=*/60'000));
    try {
      body(at);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << base::one_line(error);
      at.backend->abort();
    }
  });
}

void run(const Space& space, const std::vector<Combination>& combinations, const char* what) {
  const std::vector<CollectiveCall> chosen = calls_with_content();
  std::map<int, std::vector<Combination>> by_ranks;
  for (const Combination& combination : combinations) {
    by_ranks[kSizes[value_of(combination, Dimension::ranks)]].push_back(combination);
  }
  for (const auto& [ranks, all] : by_ranks) {
    on_test_groups(ranks, [&](const TestGroup& at) {
      for (const Combination& combination : all) {
        try {
          chosen[value_of(combination, Dimension::call)].check(case_of(combination, at));
        } catch (const std::exception& error) {
          throw std::runtime_error(space.name(combination) + ": " + base::one_line(error));
        }
      }
    });
  }
  std::printf("covered: %zu combinations of %s against expected values\n", combinations.size(), what);
}

// Pairwise coverage with pieces larger than any block or buffer, three-way coverage with smaller ones.
TEST(CollectivesGrid, EveryCallGivesTheExpectedValues) {
  const Space space = full_space();
  if (is_full())
    return run(space, space.all(), "collective, dtype, ranks, size and layout, all combinations,");
  run(space, covering(space, 2, /*seed=*/11), "collective, dtype, ranks, size and layout (any two)");
  Space small = space;
  small.exclude({"elements", kLargest}, {"elements", kLargest});
  run(small, covering(small, 3, /*seed=*/12),
      "collective, dtype, ranks, size up to a page and layout (any three)");
}

TEST(CollectivesGrid, BarrierReturnsAfterAllRanksHaveCalledIt) {
  for (const int ranks : kSizes) {
    std::atomic<int> arrived{0};
    on_test_groups(ranks, [&](const TestGroup& at) {
      int round = 0;
      for (const CollectiveCall& call : collective_calls()) {
        if (call.traits.has_content) continue;
        for (const bool use_heap : {true, false}) {
          if (at.backend->getRank() == ++round % ranks)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          ++arrived;
          call.check(
              {at, {at::kFloat, Reduce::sum, ranks}, InputLayout::unregistered, 0, /*even=*/true, use_heap});
          EXPECT_GE(arrived, ranks * round) << call.name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace shardwise::comm::grid_test

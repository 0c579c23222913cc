// Every form × operation × dtype × ranks × size × layout × even or uneven pieces against closed forms:
// coverings of that space in `make test`, all of it in `make test-full`.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "shardwise/base/error.h"
#include "tests/comm/forms.h"
#include "tests/comm/threads.h"
#include "tests/support/covering.h"
#include "tests/support/extent.h"

namespace shardwise::comm::grid_test {
namespace {

using namespace shardwise::testing;

enum Dimension { kForm, kPath, kReduce, kDtype, kRanks, kNumel, kLayout, kPieces };

constexpr int kSizes[] = {1, 2, 3, 4, 8};
constexpr const char* kLayoutNames[] = {"foreign", "strided", "in arena", "strided in arena"};

struct Numel {
  const char* name;
  int64_t bytes, more;
  int64_t of(at::ScalarType dtype) const { return bytes / int64_t(c10::elementSize(dtype)) + more; }
};
constexpr Numel kNumels[] = {
    {"0", 0, 0},       {"1", 0, 1},           {"odd", 0, 1009},        {"page - 1", 4096, -1},
    {"page", 4096, 0}, {"page + 1", 4096, 1}, {"4 MB + 3", 4 << 20, 3}};
constexpr const char* kLargest = "4 MB + 3";

std::vector<Form> forms_with_content() {
  std::vector<Form> chosen;
  std::ranges::copy_if(forms(), std::back_inserter(chosen),
                       [](const Form& form) { return form.traits.has_content; });
  return chosen;
}

template <typename Range, typename Name>
std::vector<std::string> names(const Range& values, const Name& name) {
  std::vector<std::string> names;
  for (const auto& value : values) names.emplace_back(name(value));
  return names;
}

void exclude_what_a_form_lacks(Space& space, const Form& form) {
  const auto exclude = [&](const char* dimension, const std::string& value) {
    space.exclude({"form", form.name}, {dimension, value});
  };
  for (const Reduce reduce : kReduces) {
    if (!form.traits.reduces && reduce != Reduce::sum) exclude("reduce", name(reduce));
  }
  if (!form.traits.is_groups) exclude("path", "as on others");
  if (!form.traits.cuts) exclude("pieces", "uneven");
  if (form.traits.needs_peer) exclude("ranks", "1");
}

Space whole_space() {
  Space space;
  const auto dtype_name = [](at::ScalarType dtype) { return c10::toString(dtype); };
  space.add("form", names(forms_with_content(), [](const Form& form) { return form.name; }));
  space.add("path", {"shared", "as on others"});
  space.add("reduce", names(kReduces, [](Reduce reduce) { return name(reduce); }));
  space.add("dtype", names(kDtypes, dtype_name));
  space.add("ranks", names(kSizes, [](int ranks) { return std::to_string(ranks); }));
  space.add("elements", names(kNumels, [](const Numel& numel) { return numel.name; }));
  space.add("layout", {std::begin(kLayoutNames), std::end(kLayoutNames)});
  space.add("pieces", {"even", "uneven"});
  for (const Form& form : forms_with_content()) exclude_what_a_form_lacks(space, form);
  for (const Reduce reduce : kReduces) {
    for (const at::ScalarType dtype : kDtypes) {
      if (!takes(reduce, dtype)) space.exclude({"reduce", name(reduce)}, {"dtype", dtype_name(dtype)});
    }
  }
  space.exclude({"ranks", "1"}, {"pieces", "uneven"});
  space.exclude({"ranks", "1"}, {"path", "as on others"});
  space.exclude({"elements", "0"}, {"pieces", "uneven"});
  return space;
}

Case case_of(const Combination& combination, const Joined& at) {
  const auto value = [&](Dimension dimension) { return size_t(combination[dimension]); };
  const at::ScalarType dtype = kDtypes[value(kDtype)];
  return {at,
          {dtype, kReduces[value(kReduce)], kSizes[value(kRanks)]},
          kLayouts[value(kLayout)],
          kNumels[value(kNumel)].of(dtype),
          /*even=*/value(kPieces) == 0,
          /*on_shared=*/value(kPath) == 0};
}

/// An error that leaves `body` is the case's, and the other ranks are told.
void on_joined(int ranks, const std::function<void(const Joined&)>& body) {
  on_threads(ranks, [&](int rank, const std::string& job) {
    at::set_num_threads(1);
    const Joined at = join(options(job, rank, ranks, /*timeout_ms=*/60'000));
    try {
      body(at);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank << ": " << base::one_line(error);
      at.backend->abort();
    }
  });
}

void run(const Space& space, const std::vector<Combination>& combinations, const char* what) {
  const std::vector<Form> chosen = forms_with_content();
  std::map<int, std::vector<Combination>> by_ranks;
  for (const Combination& combination : combinations) {
    by_ranks[kSizes[combination[kRanks]]].push_back(combination);
  }
  for (const auto& [ranks, all] : by_ranks) {
    on_joined(ranks, [&](const Joined& at) {
      for (const Combination& combination : all) {
        try {
          chosen[size_t(combination[kForm])].check(case_of(combination, at));
        } catch (const std::exception& error) {
          throw std::runtime_error(space.name(combination) + ": " + base::one_line(error));
        }
      }
    });
  }
  std::printf("covered: %zu combinations of %s against closed forms\n", combinations.size(), what);
}

// Pieces larger than any block or buffer meet each other value of a dimension, smaller ones each two others.
TEST(CollectivesGrid, EveryFormGivesItsClosedForm) {
  const Space space = whole_space();
  if (is_full()) return run(space, space.all(), "collective, dtype, ranks, size and layout, all of them,");
  run(space, covering(space, 2, /*seed=*/11), "collective, dtype, ranks, size and layout (any two)");
  Space small = space;
  small.exclude({"elements", kLargest}, {"elements", kLargest});
  run(small, covering(small, 3, /*seed=*/12),
      "collective, dtype, ranks, size up to a page and layout (any three)");
}

TEST(CollectivesGrid, NobodyLeavesABarrierBeforeTheLastHasCome) {
  for (const int ranks : kSizes) {
    std::atomic<int> came{0};
    on_joined(ranks, [&](const Joined& at) {
      int round = 0;
      for (const Form& form : forms()) {
        if (form.traits.has_content) continue;
        for (const bool on_shared : {true, false}) {
          if (at.backend->getRank() == ++round % ranks)
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          ++came;
          form.check({at, {at::kFloat, Reduce::sum, ranks}, Layout::foreign, 0, /*even=*/true, on_shared});
          EXPECT_GE(came, ranks * round) << form.name;
        }
      }
    });
  }
}

}  // namespace
}  // namespace shardwise::comm::grid_test

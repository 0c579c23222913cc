#include "shardwise/checkpoint/collective_errors.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "shardwise/base/error.h"
#include "shardwise/base/files.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::collective_errors_test {
namespace {

using checkpoint::all_ranks_or_throw;
using checkpoint::ValidationErrors;

TEST(AllRanksOrThrow, RunsTheWorkOnEveryRank) {
  std::atomic<int> done = 0;
  on_ranks(3, [&](const comm::Group& group) { all_ranks_or_throw(group, "work", [&] { ++done; }); });
  EXPECT_EQ(done, 3);
}

TEST(AllRanksOrThrow, FailingRankThrowsItsErrorAndOthersNameTheRank) {
  on_ranks(3, [](const comm::Group& group) {
    const auto fail_on_1 = [&] { TORCH_CHECK_VALUE(group.rank() != 1, "the disk of rank 1 is full"); };
    const std::string text =
        test::error_text<c10::Error>([&] { all_ranks_or_throw(group, "work", fail_on_1); });
    EXPECT_EQ(text, group.rank() == 1 ? "the disk of rank 1 is full"
                                      : "work: must succeed on every rank; got a failure on rank 1; see the "
                                        "error message of that rank");
  });
}

TEST(AllRanksOrThrow, EveryFailingRankThrowsItsOwnError) {
  on_ranks(2, [](const comm::Group& group) {
    const auto fail = [&] { throw std::runtime_error("rank " + std::to_string(group.rank())); };
    try {
      all_ranks_or_throw(group, "work", fail);
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "rank " + std::to_string(group.rank()));
    }
  });
}

TEST(AllRanksOrThrow, LocalErrorIsThrownEvenIfAPeerHasExited) {
  const auto body = [](const comm::Group& group) {
    if (group.rank() == 1) throw std::logic_error("rank 1 exits");
    const auto fail = [] { throw std::runtime_error("local"); };
    EXPECT_THROW(all_ranks_or_throw(group, "work", fail), std::runtime_error);
  };
  EXPECT_THROW(on_ranks(2, body), std::logic_error);
}

TEST(ValidationErrors, LowestRanksErrorIsThrownOnAllRanks) {
  on_ranks(4, [](const comm::Group& group) {
    ValidationErrors errors;
    const bool is_wrong = group.rank() == 1 || group.rank() == 3;
    for (const std::string what : {"first", "second, and longer"}) {
      errors.collect([&] { TORCH_CHECK_VALUE(!is_wrong, what, " of rank ", group.rank()); });
    }
    EXPECT_EQ(test::error_text<base::CollectiveError>([&] { errors.raise_on_any_rank(group); }),
              "first of rank 1");
  });
}

TEST(ValidationErrors, AFileThatOneRankCannotWriteIsAnErrorOfAllRanks) {
  on_ranks(2, [](const comm::Group& group) {
    ValidationErrors errors;
    EXPECT_EQ(errors.collect([&] {
      if (group.rank() == 1) throw base::FileError("open", "file", "no permission");
    }),
              group.rank() == 0);
    EXPECT_EQ(test::error_text<base::CollectiveError>([&] { errors.raise_on_any_rank(group); }),
              "open file: no permission");
  });
}

TEST(ValidationErrors, NoErrorThrowsNothing) {
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [](const comm::Group& group) {
      ValidationErrors errors;
      errors.collect([] {});
      EXPECT_NO_THROW(errors.raise_on_any_rank(group));
    });
  }
}

TEST(ValidationErrors, OtherExceptionsPropagate) {
  ValidationErrors errors;
  EXPECT_THROW(errors.collect([] { throw std::runtime_error("the disk"); }), std::runtime_error);
  EXPECT_NO_THROW(errors.raise_on_any_rank(comm::Group()));
}

}  // namespace
}  // namespace shardwise::testing::collective_errors_test

// Numbers that would overflow the counts of a run, and what replicas can split.
#include "shardwise/train/options.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/error_text.h"

namespace shardwise::train::options_test {
namespace {

std::string error(int64_t seq_len, int64_t batch_size, int64_t grad_accum) {
  TrainOptions options;
  options.text = {"text"};
  options.seq_len = seq_len;
  options.batch_size = batch_size;
  options.grad_accum = grad_accum;
  return test::error_text([&] { validate(options); });
}

TEST(Options, TheTokensOfAStepAreBounded) {
  constexpr int64_t kMost = int64_t{1} << 40, kHuge = std::numeric_limits<int64_t>::max();
  const std::string rule =
      "train: --seq-len x --batch-size x --grad-accum must be at most 1099511627776 tokens; got ";
  EXPECT_EQ(error(11, 2, kHuge), rule + "11 x 2 x 9223372036854775807");
  EXPECT_EQ(error(11, kHuge, 1), rule + "11 x 9223372036854775807 x 1");
  EXPECT_EQ(error(kHuge, 2, 1), rule + "9223372036854775807 x 2 x 1");
  EXPECT_EQ(error(1024, 1024, (kMost >> 20) + 1), rule + "1024 x 1024 x 1048577");
  TrainOptions options;
  options.text = {"text"};
  options.seq_len = options.batch_size = int64_t{1024};
  options.grad_accum = kMost >> 20;
  EXPECT_NO_THROW(validate(options));
}

TEST(Options, ReplicasSplitWhatCanBeSplit) {
  TrainOptions options;
  options.text = {"text"};
  options.dp = options.batch_size = 2;
  const auto refused = [&] { return test::error_text([&] { validate(options); }); };
  for (const int64_t stage : {-1, 4}) {
    options.zero = stage;
    EXPECT_EQ(refused(), "train: --zero must be 0, 1, 2 or 3; got " + std::to_string(stage));
  }
  for (const int64_t stage : {2, 3}) {
    options.zero = stage;
    options.split_batch = false;
    EXPECT_NO_THROW(validate(options));
    options.split_batch = true;
    EXPECT_EQ(refused(),
              "train: --zero 2 and 3 sum the gradients of a block when its backward is done, and need one "
              "that runs "
              "alone; got --split-batch too, which runs several micro-batches at once");
  }
}

}  // namespace
}  // namespace shardwise::train::options_test

#include "tests/support/deadline.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <optional>

namespace shardwise::testing::deadline_test {
namespace {

constexpr const char* kVariable = "SHARDWISE_TEST_TIME_SCALE";

class Deadline : public ::testing::Test {
 protected:
  Deadline() { unsetenv(kVariable); }
  ~Deadline() override { before_ ? setenv(kVariable, before_->c_str(), 1) : unsetenv(kVariable); }

 private:
  std::optional<std::string> before_ = base::env_text(kVariable);
};

TEST_F(Deadline, FailsTheTestOnceItIsReached) {
  expect_within(0.999, 1);
  EXPECT_NONFATAL_FAILURE(expect_within(1, 1), "took 1 s, and the deadline is 1 s");
}

TEST_F(Deadline, GrowsByTheScale) {
  setenv(kVariable, "2.5", 1);
  EXPECT_EQ(scaled_s(2), 5);
  expect_within(4.9, 2);
  EXPECT_NONFATAL_FAILURE(expect_within(5.1, 2), "the deadline is 5 s");
}

TEST_F(Deadline, HasNoScaleBelowOne) {
  for (const char* wrong : {"0.5", "fast", "2x", "nan", "-3"}) {
    setenv(kVariable, wrong, 1);
    EXPECT_THROW(time_scale(), std::runtime_error) << wrong;
  }
}

}  // namespace
}  // namespace shardwise::testing::deadline_test

#include "shardwise/base/environment.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

#include "shardwise/base/error.h"

namespace shardwise::base::environment_test {
namespace {

constexpr const char* kVariable = "SHARDWISE_ENVIRONMENT_TEST";

class Environment : public ::testing::Test {
 protected:
  ~Environment() override { ::unsetenv(kVariable); }
  void set(const char* value) { ::setenv(kVariable, value, /*overwrite=*/1); }
};

TEST_F(Environment, TextIsAbsentOrAsSet) {
  EXPECT_EQ(env_text(kVariable), std::nullopt);
  set("");
  EXPECT_EQ(env_text(kVariable), "");
  set("a = b");
  EXPECT_EQ(env_text(kVariable), "a = b");
  EXPECT_EQ(std::ranges::count(env_all(), std::string(kVariable) + "=a = b"), 1);
}

TEST_F(Environment, CountsAreIntegersOfAtLeastTheBound) {
  EXPECT_EQ(env_count(kVariable, 1, 7), 7);
  set("12");
  EXPECT_EQ(env_count(kVariable, 1, 7), 12);
  set("0");
  EXPECT_EQ(env_count(kVariable, 0, 7), 0);
  for (const char* wrong : {"0", "", "two", "3 ", "1.5", "99999999999"}) {
    set(wrong);
    try {
      env_count(kVariable, 1, 7);
      ADD_FAILURE() << "accepted '" << wrong << "'";
    } catch (const c10::ValueError& error) {
      EXPECT_EQ(without_code(one_line(error)), std::string("environment: ") + kVariable +
                                                   " must be an integer of at least 1; got '" + wrong + "'");
    }
  }
}

}  // namespace
}  // namespace shardwise::base::environment_test

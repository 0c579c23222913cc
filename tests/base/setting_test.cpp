#include "shardwise/base/setting.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise::base::setting_test {
namespace {

TEST(Setting, RecordsWhetherItWasGiven) {
  Setting<double> rate = Default{1};
  EXPECT_FALSE(rate.is_given());
  EXPECT_EQ(rate * 2, 2.0);
  rate = 1;  // the default, but given
  EXPECT_TRUE(rate.is_given());
  rate = Default{0.5};
  EXPECT_FALSE(rate.is_given());
  EXPECT_EQ(rate, 0.5);
}

TEST(Setting, IsGivenByAnInitializer) {
  struct Options {
    Setting<std::string> name = Default{"none"};
    Setting<int> size = Default{3};
  };
  const Options options{.size = 3};
  EXPECT_TRUE(options.size.is_given());
  EXPECT_FALSE(options.name.is_given());
  EXPECT_EQ(std::string(options.name), "none");
  Options copy;
  copy = options;
  EXPECT_TRUE(copy.size.is_given());
}

}  // namespace
}  // namespace shardwise::base::setting_test

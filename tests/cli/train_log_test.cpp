// The log of a run that is resumed: steps that are repeated, and a line that a full disk or a crash cut off.
#include "shardwise/cli/train_log.h"

#include <gtest/gtest.h>

#include "tests/support/temporary.h"

namespace shardwise::cli::train_log_test {
namespace {

namespace fs = std::filesystem;

const std::string kMemory = "{\"expected_memory\":[]}\n", kFirst = "{\"step\":1}\n",
                  kSecond = "{\"step\":2}\n";

class TrainLog : public ::testing::Test {
 protected:
  /// Returns the log after a resume from step 1, and checks the number of steps that it removed.
  std::string kept(const std::string& text, int64_t dropped) const {
    const std::string log = scratch_.put("log", text);
    EXPECT_EQ(drop_steps_after(log, /*step=*/1), dropped) << text;
    return test::contents(log);
  }

  const test::TemporaryDirectory scratch_;
};

TEST_F(TrainLog, StepsThatAreRepeatedAreRemoved) {
  EXPECT_EQ(kept(kMemory + kFirst, 0), kMemory + kFirst);
  EXPECT_EQ(kept(kMemory + kFirst + kSecond + "not JSON\n", 1), kMemory + kFirst + "not JSON\n");
  EXPECT_EQ(kept("", 0), "");
}

TEST_F(TrainLog, APartOfALineIsRemoved) {
  EXPECT_EQ(kept(kFirst + "{\"step\":2,\"lo", 0), kFirst);
  EXPECT_EQ(kept(kFirst + kSecond + "{\"step\":3,\"lo", 1), kFirst);
  EXPECT_EQ(kept("{\"expec", 0), "");
}

TEST_F(TrainLog, ALineThatIsNoPartOfARecordStays) {
  EXPECT_EQ(kept("notes", 0), "notes\n");
  EXPECT_EQ(kept(kFirst + "[[", 0), kFirst + "[[\n");
}

TEST_F(TrainLog, ACompleteLastLineGetsItsNewline) {
  EXPECT_EQ(kept(kMemory + "{\"step\":1}", 0), kMemory + kFirst);
  EXPECT_EQ(kept(kFirst + "{\"step\":2}", 1), kFirst);
}

TEST_F(TrainLog, ALinkToTheLogStaysALink) {
  const std::string file = scratch_.put("directory/file", kFirst + kSecond);
  fs::create_symlink("directory/file", scratch_ / "log");
  EXPECT_EQ(drop_steps_after(scratch_ / "log", /*step=*/1), 1);
  EXPECT_TRUE(fs::is_symlink(scratch_ / "log"));
  EXPECT_EQ(test::contents(file), kFirst);
}

}  // namespace
}  // namespace shardwise::cli::train_log_test

// The record of a thread's ops.
#include "shardwise/base/profile.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace shardwise::base::profile_test {
namespace {

TEST(Profile, RecordsNestedOpsInTheOrderOfTheirBegins) {
  Profile profile;
  {
    const Profile::Recording recording(profile);
    const ProfiledOp outer("outer");
    { const ProfiledOp inner("inner"); }
    ProfiledOp second("second");
    second.add_waiting(3);
    second.add_waiting(4);
  }
  ASSERT_EQ(profile.runs().size(), 3u);
  const ProfiledRun &outer = profile.runs()[0], &inner = profile.runs()[1], &second = profile.runs()[2];
  EXPECT_EQ(std::string(outer.op) + inner.op + second.op, "outerinnersecond");
  EXPECT_EQ(outer.depth, 0);
  EXPECT_EQ(inner.depth, 1);
  EXPECT_EQ(second.depth, 1);
  EXPECT_EQ(outer.nested_ns, inner.duration_ns + second.duration_ns);
  EXPECT_GE(outer.duration_ns, outer.nested_ns);
  EXPECT_LE(outer.begin_ns, inner.begin_ns);
  EXPECT_LE(inner.begin_ns + inner.duration_ns, second.begin_ns);
  EXPECT_EQ(second.waiting_ns, 7);
  EXPECT_EQ(outer.waiting_ns, 0);
}

TEST(Profile, OpsBelongToThePartEnteredLast) {
  Profile profile;
  const Profile::Recording recording(profile);
  { const ProfiledOp before("before"); }
  for (const char* part : {"a.weight", "b.weight", "a.weight"}) {
    enter_part(part);
    const ProfiledOp op("op");
  }
  EXPECT_EQ(profile.parts(), (std::vector<std::string>{"", "a.weight", "b.weight"}));
  std::vector<int> parts;
  for (const ProfiledRun& run : profile.runs()) parts.push_back(run.part);
  EXPECT_EQ(parts, (std::vector<int>{0, 1, 2, 1}));
}

TEST(Profile, RecordsOneThreadWhileTheRecordingLives) {
  Profile profile;
  { const ProfiledOp before("before"); }
  {
    const Profile::Recording recording(profile);
    std::thread([] { const ProfiledOp elsewhere("elsewhere"); }).join();
    const ProfiledOp op("op");
  }
  { const ProfiledOp after("after"); }
  ASSERT_EQ(profile.runs().size(), 1u);
  EXPECT_EQ(std::string(profile.runs()[0].op), "op");
}

/// An op that began before the recording is not part of it.
TEST(Profile, RecordsNoOpThatBeganEarlier) {
  Profile profile;
  const ProfiledOp early("early");
  {
    const Profile::Recording recording(profile);
    enter_part("a.weight");
  }
  EXPECT_TRUE(profile.runs().empty());
}

}  // namespace
}  // namespace shardwise::base::profile_test

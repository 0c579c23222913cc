// The check of the order of system calls refuses what the program does not do.
#include "tests/durability/order.h"

#include <gtest/gtest.h>

namespace shardwise::testing::order_test {
namespace {

const Tree kBefore{{"saved", {Node::Type::directory}}, {"saved/step-1", {Node::Type::directory}}};
const Operation kSync{.kind = OperationKind::sync, .path = "saved"};

TEST(Order, ALinkAtItsFinalNameIsAViolation) {
  const Operation link{.kind = OperationKind::symlink, .path = "saved/latest", .other = "step-1"};
  const std::vector<std::string> violations = order_violations(kBefore, {link, kSync});
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_TRUE(violations[0].ends_with("changes a file with a final name in place")) << violations[0];
}

TEST(Order, ALinkThatIsRenamedToItsFinalNameIsNone) {
  const Operation link{.kind = OperationKind::symlink, .path = "saved/latest.tmp1", .other = "step-1"};
  const Operation rename{.kind = OperationKind::rename, .path = "saved/latest.tmp1", .other = "saved/latest"};
  EXPECT_EQ(order_violations(kBefore, {link, rename, kSync}), std::vector<std::string>{});
}

}  // namespace
}  // namespace shardwise::testing::order_test

// The main function of the test programs. A run in which a test skipped itself exits with kSkipped, so that
// ctest counts its suite as "not run" instead of as passed (tests/suites.cmake).
#include <gtest/gtest.h>

namespace {
constexpr int kSkipped = 77;  // as in Automake
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const bool has_skipped = ::testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  return failed == 0 && has_skipped ? kSkipped : failed;
}

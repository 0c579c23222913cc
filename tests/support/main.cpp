// The main function of the test programs. A run in which a test skipped itself exits with kSkipped, so that
// ctest counts its suite as "not run" instead of as passed (tests/suites.cmake).
#include <gtest/gtest.h>

namespace {
constexpr int kSkipped = 77;  // as in Automake
}

// The sanitizers' defaults: an allocation beyond their limit fails as without them, for tests of ranks
// without memory.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const bool has_skipped = ::testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  return failed == 0 && has_skipped ? kSkipped : failed;
}

// The main function of the test programs. A run in which a test skipped itself exits with kSkipped, so that
// ctest counts its suite as "not run" instead of as passed (tests/suites.cmake).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kSkipped = 77;  // as in Automake

/// Returns whether the filter matches no test, as after a misspelling. A disabled test counts, because ctest
/// runs its suite; one of several shards may get no test.
bool has_no_test() {
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  const bool is_shard = std::getenv("GTEST_TOTAL_SHARDS") != nullptr;
  return !is_shard && !GTEST_FLAG_GET(list_tests) && all.test_to_run_count() == 0 &&
         all.reportable_disabled_test_count() == 0;
}

}  // namespace

// The sanitizers' defaults: an allocation beyond their limit fails as without them, for tests of ranks
// without memory.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" const char* __tsan_default_options() {  // in place of kernels/threads.cpp's
  return "allocator_may_return_null=1:ignore_noninstrumented_modules=1";
}

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  if (has_no_test()) {
    std::fputs("no test matches the filter\n", stderr);
    return 1;
  }
  const bool has_skipped = ::testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  return failed == 0 && has_skipped ? kSkipped : failed;
}

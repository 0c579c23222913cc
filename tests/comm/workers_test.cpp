// Tests that wait for a worker end, with what it printed, also if it hangs.
#include "tests/comm/workers.h"

#include <gtest/gtest-spi.h>
#include <sys/wait.h>

#include "tests/comm/threads.h"

namespace shardwise::testing::workers_test {
namespace {

TEST(Workers, ASilentOneIsKilledAndFailsTheTest) {
  Worker worker("idle", new_job(), /*rank=*/0, /*size=*/1, /*timeout_ms=*/20'000);
  EXPECT_NONFATAL_FAILURE(worker.output(/*limit_s=*/0.1), "a worker printed nothing for");
  const int status = worker.wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

}  // namespace
}  // namespace shardwise::testing::workers_test

// What a build without NCCL says; linked with no_nccl.cpp in place of the rest of that directory.
#include <gtest/gtest.h>

#include "shardwise/comm/nccl/nccl.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::no_nccl_test {
namespace {

using test::error_text;

TEST(NoNccl, SaysHowToGetIt) {
  EXPECT_FALSE(nccl::is_built_in());
  EXPECT_EQ(error_text([] { nccl::device_count(); }),
            "device_count: GPUs are for a build with NCCL, which this one lacks; got no plugin; install the "
            "headers of CUDA and NCCL and build again");
  EXPECT_EQ(
      error_text([] { nccl::connect(nccl::Options(Group())); }),
      "connect: ranks with a GPU each are joined by NCCL, which this build lacks; got 1 ranks; install the "
      "headers of CUDA and NCCL and build again");
}

}  // namespace
}  // namespace shardwise::comm::no_nccl_test

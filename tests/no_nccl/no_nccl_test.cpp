// The errors of a build without NCCL. Linked with no_nccl.cpp instead of the rest of that directory.
#include <gtest/gtest.h>

#include "shardwise/comm/nccl/nccl.h"
#include "tests/support/error_text.h"

namespace shardwise::comm::no_nccl_test {
namespace {

using test::error_text;

TEST(NoNccl, ErrorsSayHowToBuildWithIt) {
  EXPECT_FALSE(nccl::is_built_in());
  EXPECT_EQ(error_text([] { nccl::device_count(); }),
            "device_count: GPUs need a build with NCCL; got a build without it; install the CUDA and NCCL "
            "headers and rebuild");
  EXPECT_EQ(error_text([] { nccl::connect(nccl::ConnectOptions(Group())); }),
            "connect: a group of GPUs needs a build with NCCL; got 1 ranks in a build without it; install "
            "the CUDA and "
            "NCCL headers and rebuild");
}

}  // namespace
}  // namespace shardwise::comm::no_nccl_test

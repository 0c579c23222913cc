// Suites that run once per instruction set of the inner loops (*_isa.cpp). ctest lists those of a set that
// the processor lacks as not run.
#pragma once
#include <gtest/gtest.h>

#include "shardwise/base/environment.h"
#include "shardwise/base/isa.h"

namespace shardwise::testing {

/// Returns whether SHARDWISE_MAX_ISA names an instruction set that the processor lacks. A test that is run
/// once for each then skips itself, so that ctest counts the run as not run.
inline bool lacks_limit() {
  const auto limit = base::env_text("SHARDWISE_MAX_ISA");
  return limit && *limit != base::name_of(base::best_isa());
}

class EveryIsa : public ::testing::TestWithParam<base::Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > base::best_isa()) GTEST_SKIP() << "the processor lacks this instruction set";
  }
};

}  // namespace shardwise::testing

/// Runs a suite whose name must be unique in the program, because `Avx2/Suite` and `Avx512/Suite` are.
#define SHARDWISE_WIDE_ISAS(Suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(Avx2, Suite, ::testing::Values(::shardwise::base::Isa::avx2)); \
  INSTANTIATE_TEST_SUITE_P(Avx512, Suite, ::testing::Values(::shardwise::base::Isa::avx512))

#define SHARDWISE_EVERY_ISA(Suite)                                                                \
  INSTANTIATE_TEST_SUITE_P(Baseline, Suite, ::testing::Values(::shardwise::base::Isa::baseline)); \
  SHARDWISE_WIDE_ISAS(Suite)

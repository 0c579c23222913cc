// The emulator finds every fault of faults.h, by the named means, and reports none where there is none.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/launch/program.h"

namespace shardwise::emulator_test {
namespace {

constexpr const char* kPlain = RUN_FAULT;
constexpr const char* kAddress = RUN_FAULT_ASAN;
constexpr const char* kThread = RUN_FAULT_TSAN;

struct Turn {
  const char* order;
  int seed;
};
const std::vector<Turn> kTurns = {
    {"forward", 0}, {"backward", 0}, {"random", 1}, {"random", 2}, {"random", 3}};

/// Returns what a program prints of the case. ThreadSanitizer otherwise waits a second before a process ends.
std::string output_of(const char* program, const std::string& name, const Turn& turn) {
  testing::Program run({program, name, turn.order, std::to_string(turn.seed)},
                       {.environment = {"TSAN_OPTIONS=atexit_sleep_ms=0"}});
  run.wait();
  return run.output() + run.errors();
}

/// Returns in how many of the orders the output has all of these texts.
int found_in(const char* program, const std::string& name, const std::vector<std::string>& texts) {
  int found = 0;
  for (const Turn& turn : kTurns) {
    const std::string output = output_of(program, name, turn);
    bool has_all = true;
    for (const std::string& text : texts) has_all = has_all && output.find(text) != std::string::npos;
    found += has_all;
  }
  return found;
}

class RightKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(RightKernels, AreRightInEveryOrderAndBuild) {
  for (const char* program : {kPlain, kAddress, kThread})
    for (const Turn& turn : kTurns)
      EXPECT_EQ(output_of(program, GetParam(), turn), "right\n") << program << " " << turn.order << turn.seed;
}

INSTANTIATE_TEST_SUITE_P(Cases, RightKernels,
                         ::testing::Values("reverse", "reverse-in-turn", "copy", "count", "pass-on", "warp",
                                           "lanes", "bytes", "pipeline"));

/// A fault that the emulator names, in every order: a GPU would hang or compute anything.
struct Named {
  const char *name, *text;
};
class NamedFaults : public ::testing::TestWithParam<Named> {};

TEST_P(NamedFaults, AreNamedInEveryOrder) {
  const auto& [name, text] = GetParam();
  EXPECT_EQ(found_in(kPlain, name, {text}), std::ssize(kTurns)) << output_of(kPlain, name, kTurns.front());
}

INSTANTIATE_TEST_SUITE_P(Cases, NamedFaults,
                         ::testing::Values(Named{"other-barrier", "wait in different __syncthreads()"},
                                           Named{"early-exit", "barrier: thread ("},
                                           Named{"longer-loop", "hang: nobody can go on"},
                                           Named{"outside-mask", "is not in its own mask"},
                                           Named{"absent-lane", "ended"}, Named{"other-mask", "mask"},
                                           Named{"no-flag", "waits for ever for what no resident block does"},
                                           Named{"crowded",
                                                 "waits for ever for what no resident block does"}));

/// A fault whose numbers are wrong in some order.
class WrongNumbers : public ::testing::TestWithParam<const char*> {};

TEST_P(WrongNumbers, AreSeenInSomeOrder) {
  EXPECT_GE(found_in(kPlain, GetParam(), {"wrong: "}), 1);
}

INSTANTIATE_TEST_SUITE_P(Cases, WrongNumbers,
                         ::testing::Values("no-first-barrier", "no-second-barrier", "no-barrier-before-flag",
                                           "no-event-after-copy", "no-event-after-use",
                                           "no-wait-of-the-host"));

/// A fault that a sanitizer reports with the line of the kernel.
struct Reported {
  const char *name, *program, *text;
};
class ReportedFaults : public ::testing::TestWithParam<Reported> {};

TEST_P(ReportedFaults, AreReportedWithTheirFile) {
  const auto& [name, program, text] = GetParam();
  EXPECT_GE(found_in(program, name, {text, "faults.cu:"}), 1) << output_of(program, name, kTurns.front());
}

constexpr const char* kRace = "ThreadSanitizer: data race";
INSTANTIATE_TEST_SUITE_P(
    Cases, ReportedFaults,
    ::testing::Values(
        Reported{"no-first-barrier", kThread, kRace}, Reported{"no-second-barrier", kThread, kRace},
        Reported{"two-blocks-one-word", kThread, kRace}, Reported{"relaxed-flag", kThread, kRace},
        Reported{"no-barrier-before-flag", kThread, kRace}, Reported{"no-event-after-copy", kThread, kRace},
        Reported{"no-event-after-use", kThread, kRace}, Reported{"no-wait-of-the-host", kThread, kRace},
        Reported{"out-of-bounds", kAddress, "AddressSanitizer: heap-buffer-overflow"},
        Reported{"misaligned", kAddress, "misaligned address"}));

}  // namespace
}  // namespace shardwise::emulator_test

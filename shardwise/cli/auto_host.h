// This host as --auto plans for it: the machines of several numbers of ranks, and the memory that is left.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "shardwise/cli/flags.h"
#include "shardwise/plan/host_search.h"

namespace shardwise::cli {

/// The flags that turn the choice on.
struct AutoOptions {
  bool is_on = false;
  std::optional<double> memory_cap;  // GB of a rank
};

/// Adds --auto, which chooses `what`, and --memory-cap.
void add_auto_flags(Flags& flags, AutoOptions& options, const std::string& what);

/// Returns whether this process has to choose: --auto is given, and this is not a rank that the choosing
/// process started. Errors: c10::ValueError beginning with `command` for --memory-cap alone, for a `device`
/// that is not the CPU, and under torchrun, mpirun or srun, which have chosen the number of ranks.
bool has_to_choose(const std::string& command, const AutoOptions& options, const std::string& device);

/// Errors: c10::ValueError if `flag`, whose times plan/ does not have, is given.
void refuse_unplanned(const std::string& command, bool is_given, const char* flag);

/// Returns the most ranks that --auto starts on this process's cores.
int64_t most_ranks_of_choice();

/// Returns the host for these numbers of ranks. Measures those that no file has, and saves them. Errors:
/// c10::ValueError if there is no directory to save in; c10::Error if a measurement fails.
plan::Host host_of(const std::string& command, const std::vector<int64_t>& ranks, const AutoOptions& options);

/// Returns "; next: tp 1: 20.10 ms, 7.80 ms more (compute +8.30 ms, communication -0.50 ms)".
std::string next_text(const std::string& plan, double seconds, double more, double compute,
                      double communication);
/// Returns why there is no second plan, if memory does not suffice for `too_large` others.
std::string no_next_text(size_t too_large);

/// A plan that does not fit.
struct TooLarge {
  std::string plan;  // in words
  int64_t ranks, needed_bytes;
};
/// Throws c10::ValueError naming the one of `plans` that exceeds the host's memory least.
[[noreturn]] void throw_too_large(const std::string& command, const plan::Host& host,
                                  const std::vector<TooLarge>& plans);

}  // namespace shardwise::cli

// The commands of `shardwise bench`, and the limits that their flags share.
#pragma once
#include <cstdint>
#include <string>

#include "shardwise/cli/commands.h"
#include "shardwise/comm/shm/limits.h"

namespace shardwise::cli {

/// The most ranks that a benchmark starts.
inline constexpr int64_t kMaxBenchRanks = comm::shm::kMaxRanks;

/// Checks the value of --seconds. Errors: c10::ValueError naming `command`, the flag and the rule.
void check_seconds(const std::string& command, double seconds);

/// Makes the directory of `file`, where `flag` saves what it measures, before it measures. Errors:
/// c10::ValueError if `file` is "", because neither XDG_CACHE_HOME nor HOME is an absolute path;
/// base::FileError.
void prepare_measured_file(const std::string& command, const std::string& flag, const std::string& file);

/// Times all_reduce, next to a memcpy of the same size; see commands.h.
int bench_comm_command(const Call& call);
/// Times the linear layers of TP+SP with their collectives, next to the GEMMs alone; see commands.h.
int bench_overlap_command(const Call& call);
/// Times a token of each of several texts, and prompts; see commands.h.
int bench_decode_command(const Call& call);
int bench_prefill_command(const Call& call);
/// Times a training step, next to arithmetic; see commands.h.
int bench_step_command(const Call& call);
/// Measures the rates that plan --machine needs; see commands.h.
int bench_machine_command(const Call& call);
/// Times kernels, next to PyTorch's operators and to copying; see commands.h.
int bench_kernels_command(const Call& call);
/// Times products of a model's weights, next to reading memory and to arithmetic; see commands.h.
int bench_products_command(const Call& call);

}  // namespace shardwise::cli

#include "shardwise/cli/saved_machine.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <vector>

#include "shardwise/base/cpu_name.h"
#include "shardwise/base/error.h"
#include "shardwise/base/isa.h"
#include "shardwise/base/log.h"
#include "shardwise/launch/affinity.h"
#include "shardwise/plan/machine_file.h"
#include "shardwise/version.h"

namespace shardwise::cli {
namespace {

constexpr int64_t kMostMachineBytes = 1 << 20;

std::string counted(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

HostRanks started_ranks(int64_t ranks) {
  const std::vector<launch::AvailableCpus> available(static_cast<size_t>(ranks), launch::available_cpus());
  return {ranks, launch::share_out(available, /*rank=*/0).threads};
}

HostRanks ranks_of(const comm::Group& group) {
  return {group.size(), at::get_num_threads()};
}

base::MeasuredFile saved_machine_file(const HostRanks& ranks) {
  return {fmt::format("machine-{}", ranks.ranks),
          fmt::format("{} of {}, {}, {}, shardwise " SHARDWISE_VERSION ", PyTorch " TORCH_VERSION,
                      counted(ranks.ranks, "rank"), counted(ranks.threads, "thread"), base::cpu_name(),
                      base::name_of(base::best_isa()))};
}

std::optional<plan::Machine> saved_machine(const std::string& command, const HostRanks& ranks) {
  const base::MeasuredFile file = saved_machine_file(ranks);
  try {
    const std::optional<std::string> text = file.read(kMostMachineBytes);
    if (!text) return std::nullopt;
    return plan::parse_machine(*text, file.path());
  } catch (const c10::Error& rejected) {
    base::log_warning(base::with_code_last(
        fmt::format("{}: {}; the file is ignored [SW0787]", command, base::one_line(rejected))));
    return std::nullopt;
  }
}

}  // namespace shardwise::cli

#include "shardwise/cli/profile_largest.h"

#include <fmt/format.h>

#include "shardwise/bench/machine.h"
#include "shardwise/cli/plan_options.h"
#include "shardwise/cli/profile_hosts.h"
#include "shardwise/plan/largest.h"

namespace shardwise::cli {
namespace {

/// This machine as the memory of that many ranks. Its rates, which plans have to have, are not read.
plan::Machine memory_alone(int64_t ranks) {
  plan::Machine machine = bench::memory_of_machine(ranks, "this machine");
  const plan::Figure unit{1, "not read"};
  const plan::Rate rate({{1, 1}}, "not read");
  machine.rates_16_bit = machine.rates_32_bit = {unit, rate, rate, rate, rate, rate, rate};
  machine.memory_bytes_per_second = machine.update_bytes_per_second = unit;
  machine.within_node = {unit, unit, unit, unit, unit};
  return machine;
}

/// The largest batch of `ranks` ranks.
int64_t largest_of(plan::TrainingTask task, const plan::Machine& machine, int64_t ranks, int64_t cap_bytes,
                   bool has_sequence_parallel) {
  task.ranks = ranks;
  plan::Pins pins;
  pins.tp = ranks;
  const auto found = plan::largest_training(task, machine, pins, cap_bytes, plan::Grown::micro_batch);
  for (const plan::LargestTraining& one : found)
    if (ranks == 1 || one.plan.degrees.has_sequence_parallel == has_sequence_parallel) return one.size;
  return 0;
}

}  // namespace

void add_largest_flags(Flags& flags, LargestOptions& o) {
  flags.on_off("--largest", o.is_on,
               "add the largest batch of a training step of the whole model that a rank has memory for");
  flags.value("--memory-cap GB", o.memory_cap,
              "with --largest: memory that a rank may fill [the machine's, less a reserve]");
}

std::string LargestBatches::text(int64_t ranks) const {
  const int64_t size = by_ranks.at(ranks);
  return size == 0 ? "none" : std::to_string(size);
}

std::string LargestBatches::note() const {
  return fmt::format(
      "largest batch: sequences of a training step of the whole model, by plan, in {:.1f} GB of a rank\n",
      static_cast<double>(cap_bytes) / 1e9);
}

std::optional<LargestBatches> largest_batches(const std::string& command, const LargestOptions& o,
                                              const plan::TrainingTask& task, bool has_sequence_parallel,
                                              const std::vector<int64_t>& ranks,
                                              const std::optional<plan::Machine>& machine) {
  check_needed(command, "--memory-cap", !o.memory_cap || o.is_on, "--largest",
               fmt::format("{} alone", o.memory_cap.value_or(0)));
  const std::optional<int64_t> cap = memory_cap_in_bytes(command, o.memory_cap);
  if (!o.is_on) return std::nullopt;
  const plan::Machine& of = machine ? *machine : memory_alone(ranks.back());
  LargestBatches largest{of.usable_bytes(cap), {}};
  for (const int64_t count : ranks)
    largest.by_ranks[count] = largest_of(task, of, count, largest.cap_bytes, has_sequence_parallel);
  return largest;
}

}  // namespace shardwise::cli

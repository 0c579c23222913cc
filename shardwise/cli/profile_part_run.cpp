#include "shardwise/cli/profile_part_run.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "shardwise/cli/output.h"
#include "shardwise/cli/profile_part.h"
#include "shardwise/cli/progress_line.h"

namespace shardwise::cli {
namespace {

std::string subject_of(const PartRun& run) {
  const bench::PartShape& shape = run.shapes.front();
  return fmt::format("{}, {}, {}{}", run.subject, shape.dtype == at::kFloat ? "fp32" : "bf16",
                     shape.passes == plan::PassesOf::forward ? "forward" : "forward and backward",
                     shape.is_sequence_parallel ? ", sequence parallelism" : "");
}

void append(std::vector<PartRow>& rows, std::vector<PartRow> more) {
  rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

std::vector<bench::PartMeasured> measured_on(const std::vector<bench::RankTeam>& teams,
                                             const comm::Group& world, const bench::PartBench& bench,
                                             const PartRun& run) {
  ProgressLine line;
  return bench::measure_part(bench, teams, world, [&](int64_t done, int64_t repetitions) {
    line.show(fmt::format("{}: hidden size {}, repetition {} of {}", run.command,
                          bench.shape.config.hidden_size, done, repetitions));
  });
}

void check_differences(const PartTable& table) {
  for (const PartRow& row : table.rows) {
    const auto& difference = row.measured->difference;
    TORCH_CHECK(!difference || difference->is_within_bound(), table.command,
                ": outputs may differ from one rank's by at most ", difference ? difference->bound : 0,
                "; got ", difference ? difference->largest : 0, " on ", row.ranks, " ranks [SW0802]");
  }
}

}  // namespace

void add_flags(Flags& flags, PartOptions& o) {
  flags.value("--dtype NAME", o.dtype, "fp32 or bf16 [bf16]");
  flags.on_off("--backward,!--forward", o.backward, "time forward and backward [forward]");
  flags.on_off("--sequence-parallel,!--no-sequence-parallel", o.sequence_parallel,
               "shard the input and the output along the sequence [off]");
  flags.on_off("--json", o.json, "print one JSON object instead of a table");
}

bench::PartShape shape_of(const std::string& command, const PartOptions& o, plan::Part part) {
  const std::string dtype = o.dtype.value_or("bf16");
  check_choice(command, "--dtype", dtype, {"fp32", "bf16"});
  return {.config = {},
          .dtype = dtype == "fp32" ? at::kFloat : at::kBFloat16,
          .seq_len = 0,
          .batch_size = 0,
          .is_sequence_parallel = o.sequence_parallel,
          .part = part,
          .passes = o.backward ? plan::PassesOf::forward_and_backward : plan::PassesOf::forward};
}

int print_modeled(const PartRun& run, const plan::Machine& machine, const PartOptions& o) {
  PartTable table{run.command, subject_of(run), machine.name, run.shapes.front(), {}, run.largest, {}};
  for (const bench::PartShape& shape : run.shapes)
    append(table.rows, modeled_rows(shape, run.ranks, machine));
  print(o.json ? to_json(table) : to_text(table));
  return 0;
}

int measure_and_print(const Call& call, const PartRun& run, const ProfileRanks& ranks, const PartOptions& o) {
  TORCH_CHECK_VALUE(!run.compares || run.ranks.front() == 1, run.command,
                    ": --compare needs --ranks that begin with 1; got ", run.ranks.front(), " [SW0799]");
  return run_on_teams(
      call, ranks, run.ranks, [&](const std::vector<bench::RankTeam>& teams, const comm::Group& world) {
        const std::optional<HostNetwork> network = network_of(run.command, ranks.hosts, run.ranks);
        PartTable table{run.command, subject_of(run), {}, run.shapes.front(), network, run.largest, {}};
        for (const bench::PartShape& shape : run.shapes)
          append(table.rows,
                 measured_rows(shape,
                               measured_on(teams, world, {shape, run.compares, ranks.seconds_each()}, run),
                               network));
        if (world.rank() != 0) return;
        print(o.json ? to_json(table) : to_text(table));
        check_differences(table);
      });
}

}  // namespace shardwise::cli

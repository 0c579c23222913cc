// `shardwise profile mlp`: flags and the shapes that they name.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "shardwise/cli/flags.h"
#include "shardwise/cli/lists.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_part_run.h"

namespace shardwise::cli {
namespace {

constexpr const char* kMlpCommand = "profile mlp";
constexpr int64_t kMostMlpRows = 1 << 20, kMostHidden = 1 << 17, kMostFfn = 1 << 19;

struct MlpOptions {
  ProfileRanks ranks{"1,2"};
  PartOptions part;
  std::optional<std::string> hidden;
  std::optional<int64_t> ffn, rows, seq_len, batch_size;
  bool is_gated = false, compare = false;

  std::string hidden_list() const { return hidden.value_or(compare ? "4096" : "512,1024,2048"); }
};

void add_flags(Flags& flags, MlpOptions& o) {
  flags.value("--hidden LIST", o.hidden, "hidden sizes [512,1024,2048]");
  flags.value("--ffn N", o.ffn, "intermediate size [4 times the hidden size]");
  flags.on_off("--gated", o.is_gated, "three products, gate, up and down, instead of two with GeLU");
  flags.value("--rows N", o.rows, "tokens of one sequence [2048]");
  flags.value("--seq-len N", o.seq_len, "instead of --rows: tokens of a sequence");
  flags.value("--batch-size N", o.batch_size, "with --seq-len: sequences [1]");
  flags.on_off(
      "--compare", o.compare,
      "also compare the outputs with one rank's; the shapes default to --gated --hidden 4096 --ffn 11008 "
      "--seq-len 128 --batch-size 16 --dtype fp32");
  add_flags(flags, o.part);
  add_ranks_flags(flags, o.ranks);
  add_host_flags(flags, o.ranks.hosts);
}

/// Fills in what --compare implies.
void set_defaults_(MlpOptions& o) {
  if (!o.compare) {
    if (!o.seq_len) o.seq_len = o.rows.value_or(2048);
    return;
  }
  o.is_gated = true;
  if (!o.ffn && !o.hidden) o.ffn = 11008;
  if (!o.part.dtype) o.part.dtype = "fp32";
  if (!o.rows && !o.seq_len) {
    o.batch_size = o.batch_size.value_or(16);
    o.seq_len = 128;
  }
  if (o.rows) o.seq_len = o.rows;
}

void check(const MlpOptions& o) {
  TORCH_CHECK_VALUE(!o.rows || (!o.seq_len && !o.batch_size), kMlpCommand,
                    ": --rows and --seq-len with --batch-size are mutually exclusive; got ",
                    o.rows.value_or(0), " and ", o.seq_len.value_or(o.batch_size.value_or(0)), " [SW0798]");
  if (o.rows) check_range(kMlpCommand, "--rows", *o.rows, 1, kMostMlpRows);
  if (o.ffn) check_range(kMlpCommand, "--ffn", *o.ffn, 1, kMostFfn);
  const int64_t batch = o.batch_size.value_or(1);
  check_range(kMlpCommand, "--batch-size", batch, 1, kMostMlpRows);
  if (o.seq_len) check_range(kMlpCommand, "--seq-len", *o.seq_len, 1, kMostMlpRows / batch);
}

/// Returns one shape for each hidden size.
std::vector<bench::PartShape> shapes_of(const MlpOptions& o, const std::vector<int64_t>& ranks) {
  std::vector<bench::PartShape> shapes;
  for (const int64_t hidden : integers_of(kMlpCommand, "--hidden", o.hidden_list(), 1, kMostHidden)) {
    const int64_t ffn = o.ffn.value_or(4 * hidden);
    check_range(kMlpCommand, fmt::format("--ranks of an MLP of {} features", ffn), ranks.back(), 1, ffn);
    bench::PartShape& shape = shapes.emplace_back(shape_of(kMlpCommand, o.part, plan::Part::mlp));
    shape.config = plan::mlp_config({hidden, ffn, o.is_gated}, ranks.back());
    shape.seq_len = *o.seq_len;
    shape.batch_size = o.batch_size.value_or(1);
  }
  return shapes;
}

}  // namespace

int profile_mlp_command(const Call& call) {
  MlpOptions o;
  Flags flags(
      kMlpCommand,
      "Times an MLP as training runs it, its computation alone and its collectives alone, over numbers of "
      "ranks and hidden sizes.");
  add_flags(flags, o);
  if (!flags.parse(call.arguments)) return 0;
  check(o);
  set_defaults_(o);
  const std::optional<plan::Machine> machine = machine_of(kMlpCommand, o.ranks);
  const std::vector<int64_t> ranks = ranks_of(kMlpCommand, o.ranks, kMostHidden, machine);
  const PartRun run{kMlpCommand,
                    fmt::format("{}, {} x {} tokens", o.is_gated ? "gated MLP" : "MLP",
                                o.batch_size.value_or(1), *o.seq_len),
                    shapes_of(o, ranks), ranks, o.compare};
  return machine ? print_modeled(run, *machine, o.part) : measure_and_print(call, run, o.ranks, o.part);
}

}  // namespace shardwise::cli

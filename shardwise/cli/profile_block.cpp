// `shardwise profile block`: flags and the shape that they name.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/cli/flags.h"
#include "shardwise/cli/model_input.h"
#include "shardwise/cli/profile.h"
#include "shardwise/cli/profile_part_run.h"

namespace shardwise::cli {
namespace {

constexpr const char* kBlockCommand = "profile block";
constexpr int64_t kMostBlockTokens = 1 << 24;

struct BlockOptions {
  ProfileRanks ranks{"1,2"};
  PartOptions part;
  LargestOptions largest;
  std::string model = "small";
  int64_t seq_len = 256, batch_size = 4;
};

void add_flags(Flags& flags, BlockOptions& o) {
  flags.value("--model MODEL", o.model,
              fmt::format("a preset, or a directory or file with a config.json [{}]", o.model));
  flags.value("--seq-len N", o.seq_len, fmt::format("tokens of a sequence [{}]", o.seq_len));
  flags.value("--batch-size N", o.batch_size, fmt::format("sequences [{}]", o.batch_size));
  add_flags(flags, o.part);
  add_largest_flags(flags, o.largest);
  add_ranks_flags(flags, o.ranks);
  add_host_flags(flags, o.ranks.hosts);
}

/// The computation alone is that of a model with a rank's heads, so all ranks must have as many.
void check_heads(const config::Config& c, const std::vector<int64_t>& ranks) {
  for (const int64_t count : ranks) {
    const int64_t kv = c.num_key_value_heads;
    const bool shares = c.num_attention_heads % count == 0 && (kv % count == 0 || count % kv == 0);
    TORCH_CHECK_VALUE(shares, kBlockCommand, ": --ranks must divide the ", c.num_attention_heads,
                      " query heads, and divide the ", kv, " KV heads or be a multiple of them; got ", count,
                      " [SW0800]");
  }
}

/// Returns the largest number of ranks, a power of two, that can share the heads.
int64_t most_ranks(const config::Config& c) {
  int64_t ranks = 1;
  while (c.num_attention_heads % (2 * ranks) == 0) ranks *= 2;
  return ranks;
}

bench::PartShape shape_of(const BlockOptions& o, const config::Config& config) {
  check_unquantized(kBlockCommand, config);
  check_range(kBlockCommand, "--seq-len", o.seq_len, 1, config.max_position_embeddings);
  check_range(kBlockCommand, "--batch-size", o.batch_size, 1,
              std::max<int64_t>(kMostBlockTokens / o.seq_len, 1));
  bench::PartShape shape = shape_of(kBlockCommand, o.part, plan::Part::block);
  shape.config = config;
  shape.seq_len = o.seq_len;
  shape.batch_size = o.batch_size;
  return shape;
}

/// A training step of the model with the block's batch.
plan::TrainingTask step_of(const bench::PartShape& shape) {
  plan::TrainingTask task;
  task.config = shape.config;
  task.sequence_length = shape.seq_len;
  task.batch_size = shape.batch_size;
  task.element_bytes = static_cast<int64_t>(c10::elementSize(shape.dtype));
  return task;
}

}  // namespace

int profile_block_command(const Call& call) {
  BlockOptions o;
  Flags flags(
      kBlockCommand,
      "Times a decoder block as training runs it, its computation alone and its collectives alone, over "
      "numbers of ranks.");
  add_flags(flags, o);
  if (!flags.parse(call.arguments)) return 0;
  const config::Config config = model_config_of(kBlockCommand, o.model);
  const bench::PartShape shape = shape_of(o, config);
  const std::optional<plan::Machine> machine = machine_of(kBlockCommand, o.ranks);
  const std::vector<int64_t> ranks = ranks_of(kBlockCommand, o.ranks, most_ranks(config), machine);
  check_heads(config, ranks);
  const PartRun run{
      kBlockCommand,
      fmt::format("block of {}, {} x {} tokens", o.model, o.batch_size, o.seq_len),
      {shape},
      ranks,
      /*compares=*/false,
      largest_batches(kBlockCommand, o.largest, step_of(shape), o.part.sequence_parallel, ranks, machine)};
  return machine ? print_modeled(run, *machine, o.part) : measure_and_print(call, run, o.ranks, o.part);
}

}  // namespace shardwise::cli

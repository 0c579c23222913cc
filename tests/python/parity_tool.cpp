// Data for the comparison with transformers that the program does not print: logits, and the windows
// of text that training uses. Writes them to a safetensors file.
//
//   parity_tool logits DIRECTORY IDS OUT
//     `ids` [s, b] of IDS → `tp1`, `tp1_sp`, ... [s, b, v] for 1 to 4 ranks, after checking that all ranks
//     have the same bits
//   parity_tool windows TEXT SEQ_LEN SEED COUNT OUT
//     → `windows` [count, s + 1]
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cstdio>
#include <string>
#include <vector>

#include "shardwise/base/error.h"
#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/io/writer.h"
#include "shardwise/text/windows.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerance.h"

namespace shardwise::testing {
namespace {

constexpr int kMostRanks = 4;

struct Named {
  std::string name;
  at::Tensor tensor;  // fp32 or int64
};

void write(const std::string& path, const std::vector<Named>& tensors) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    const bool is_float = tensor.scalar_type() == at::kFloat;
    specs.push_back({name, is_float ? io::Dtype::F32 : io::Dtype::I64, tensor.sizes().vec()});
  }
  const auto file = io::SafetensorsWriter::create(path, io::plan_file(specs));
  for (const auto& [name, tensor] : tensors) {
    file.write_tensor(file.layout().find(name), tensor.contiguous().const_data_ptr());
  }
}

at::Tensor read_ids(const std::string& path) {
  const io::SafetensorsFile file(path);
  const io::TensorInfo& info = file.find("ids");
  at::Tensor ids = at::empty(info.shape, at::kLong);
  file.read_tensor(info, ids.mutable_data_ptr());
  return ids;
}

template <nn::ResidualStream Stream>
at::Tensor gathered_logits(const model::DecoderWeights& weights, const at::Tensor& ids) {
  const nn::Step step(weights.group(), ids.size(0));
  const at::Tensor shard_v = model::Decoder<Stream>(weights).logits(ids, step).local();
  return weights.group().all_gather(shard_v, weights.layout().vocab, /*dim=*/-1);
}

/// The gathered logits of one rank.
struct Logits {
  at::Tensor tp, tp_sp;
};

std::vector<Logits> logits_of_ranks(const std::string& directory, const at::Tensor& ids, int ranks) {
  const config::Config config = config::load_config(directory);
  std::vector<Logits> results(ranks);
  on_ranks(ranks, [&](const comm::Group& group) {
    const at::NoGradGuard no_grad;
    model::DecoderWeights weights(config, group, at::kFloat);
    checkpoint::load_weights(directory, weights);
    results[group.rank()] = {gathered_logits<nn::Invariant>(weights, ids),
                             gathered_logits<nn::Sharded<nn::kSequence>>(weights, ids)};
  });
  return results;
}

/// Ranks sample tokens from these logits without communication, so they must be bit-equal. This checks the
/// gather; runs/replicas_test checks the values before it.
void check_same_bits(const std::vector<Logits>& of_ranks) {
  for (const auto& [tp, tp_sp] : of_ranks) {
    TORCH_CHECK(same_bits(tp, of_ranks[0].tp) && same_bits(tp_sp, of_ranks[0].tp_sp),
                "logits: must be the same bits on every rank; got others on one of ", of_ranks.size());
  }
}

void logits(const std::string& directory, const std::string& ids_path, const std::string& out) {
  checkpoint::check(directory, /*needs_state=*/false);
  const at::Tensor ids = read_ids(ids_path);
  std::vector<Named> results;
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const std::vector<Logits> of_ranks = logits_of_ranks(directory, ids, ranks);
    check_same_bits(of_ranks);
    const std::string name = "tp" + std::to_string(ranks);
    results.push_back({name, of_ranks[0].tp});
    results.push_back({name + "_sp", of_ranks[0].tp_sp});
  }
  write(out, results);
}

void windows(const std::string& text, int64_t seq_len, uint64_t seed, int64_t count, const std::string& out) {
  const text::Corpus corpus({text});
  const text::ByteTokens source(corpus);
  const text::Windows windows(source, {.seq_len = seq_len, .seed = seed});
  at::Tensor tokens = at::empty({count, seq_len + 1}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    windows.read_training(
        i, {tokens.mutable_data_ptr<int64_t>() + i * (seq_len + 1), static_cast<size_t>(seq_len + 1)});
  }
  write(out, {{"windows", tokens}});
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[0] == "logits") {
    logits(arguments[1], arguments[2], arguments[3]);
  } else if (arguments.size() == 6 && arguments[0] == "windows") {
    windows(arguments[1], std::stoll(arguments[2]), std::stoull(arguments[3]), std::stoll(arguments[4]),
            arguments[5]);
  } else {
    TORCH_CHECK_VALUE(false, "parity_tool: see the head of its source for the arguments; got ",
                      arguments.size());
  }
  return 0;
}

}  // namespace
}  // namespace shardwise::testing

int main(int argc, char** argv) {
  try {
    return shardwise::testing::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "parity_tool: %s\n", shardwise::base::one_line(error).c_str());
    return 1;
  }
}

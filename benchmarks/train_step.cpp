// One rank of the training-step benchmark: forward, backward, sync, norm, clip, AdamW on random bytes.
//
//   bench_train_step [sp|tp|no-overlap|split-batch|dp|zero3|optimizer] [fp32|bf16]
//
// TP+SP; TP with overlap; TP without overlap; TP with split batches; replicas that share the sequences of the
// batch, and one copy of the weights or each its part (ZeRO stage 3); only what follows backward: norm, clip,
// AdamW, the copy to bf16, zeroing. Shape: hidden 512, 8 layers, 8 heads, 4 KV heads, ffn 1376, vocab 32000,
// s 256, b 4.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>

#include <optional>
#include <set>

#include "benchmarks/train_step_shape.h"
#include "benchmarks/worker.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/model/decoder.h"
#include "shardwise/parallel/data_parallel.h"
#include "shardwise/train/optimizer.h"

namespace {

using namespace shardwise;

constexpr int64_t kLength = bench::kTrainStepLength, kBatch = 4;

/// Returns ids of all sequences, the same on every rank, or of those of one replica.
at::Tensor random_ids(const comm::Group& replicas) {
  const at::Tensor all =
      at::randint(0, 32000, {kLength, kBatch}, at::make_generator<at::CPUGeneratorImpl>(7), at::kLong);
  const base::Range own = base::Split::even("sequence", kBatch, replicas.size()).range(replicas.rank());
  return all.narrow(/*dim=*/1, own.begin, own.size()).contiguous();
}

/// Returns the memory of this process; a page that n processes share counts as an n-th. What a step has freed
/// is kept, so between steps this is their peak.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word && word != "Pss:") {
  }
  int64_t kilobytes = 0;
  file >> kilobytes;
  return kilobytes * 1024;
}

/// Replicas share the weights, or with "zero3" split them.
template <nn::ResidualStream Stream>
parallel::DataParallel make_data_parallel(const model::DecoderWeights& weights, const comm::Group& replicas,
                                          const std::string& mode) {
  if (mode == "zero3") return {weights.parts<Stream>(), replicas, parallel::Replication::sharded};
  return {weights.specs<Stream>(), replicas, parallel::Replication::shared};
}

template <nn::ResidualStream Stream>
void run(const comm::Group& world, const std::string& mode, at::ScalarType dtype) {
  const int64_t resident_before = resident_bytes();
  const bool is_data_parallel = mode == "dp" || mode == "zero3";
  const comm::Group group = is_data_parallel ? comm::Group() : world;
  const comm::Group replicas = is_data_parallel ? world : comm::Group();
  model::DecoderWeights weights(
      bench::train_step_shape(), group, dtype,
      is_data_parallel ? model::WeightUse::replicated_training : model::WeightUse::training);
  const auto specs = weights.specs<Stream>();
  parallel::DataParallel data_parallel = make_data_parallel<Stream>(weights, replicas, mode);
  if (data_parallel.sets_weights())
    weights.initialize_(/*seed=*/1,
                        [&](parallel::Parameter& parameter) { data_parallel.keep_set_(parameter); });
  data_parallel.wait_until_set();
  const model::Decoder<Stream> model(weights);
  train::AdamW optimizer(weights.used_parameters(), {}, data_parallel.updated());
  const at::Tensor ids = random_ids(replicas);
  int64_t step_number = 0;
  double loss_value = 0;
  const std::function<void()> update = [&] {
    parallel::sync_gradients_(specs, group);
    data_parallel.sum_gradients_();
    const double norm =
        std::sqrt(parallel::square_norm(specs, group, data_parallel.owned(), world).template item<double>());
    optimizer.step_and_zero_grad_(++step_number, /*learning_rate=*/1e-4, parallel::clip_scale(norm, 1));
    data_parallel.finish_update_();
  };
  const nn::OnPart begin = [&](int64_t part) { data_parallel.begin_part_(size_t(part)); };
  const nn::OnPart finish = [&](int64_t part) { data_parallel.finish_part_(size_t(part)); };
  const std::function<void()> step = [&] {
    nn::Step context(group, kLength);
    if (mode == "no-overlap") context.overlap = parallel::Overlap::off;
    context.split_batch = mode == "split-batch";
    if (mode == "zero3") context.part_begins = &begin, context.part_gradients_done = &finish;
    const auto loss = model.loss(ids, ids, kLength * kBatch, context);
    loss.local().backward();
    if (mode == "zero3") finish(0);
    update();
    at::Tensor sum = loss.local().detach();
    replicas.all_reduce_(sum);
    loss_value = sum.template item<double>();
  };
  bench::serve(world, mode == "optimizer" ? update : step, [&] {
    const auto* shared = world.symmetric_heap();
    return fmt::format(
        "\"loss\": {:.5f}, \"busy_s\": {:.6f}, \"waiting_s\": {:.6f}, \"resident_bytes\": {}, "
        "\"peak_bytes\": {}",
        loss_value, world.counters().busy_ns * 1e-9, world.counters().waiting_ns * 1e-9,
        resident_bytes() - resident_before, base::peak_bytes() + (shared ? shared->peak_bytes() : 0));
  });
}

}  // namespace

int main(int argc, char** argv) {
  base::keep_freed_memory();
  base::install_memory_counter();
  const std::string mode = argc < 2 ? "sp" : argv[1];
  const std::string dtype_name = argc < 3 ? "fp32" : argv[2];
  const std::set<std::string> modes{"sp", "tp", "no-overlap", "split-batch", "dp", "zero3", "optimizer"};
  TORCH_CHECK_VALUE(modes.contains(mode), "bench_train_step: mode must be one of ",
                    fmt::to_string(fmt::join(modes, ", ")), "; got ", mode);
  TORCH_CHECK_VALUE(dtype_name == "fp32" || dtype_name == "bf16",
                    "bench_train_step: dtype must be fp32 or bf16; got ", dtype_name);
  const at::ScalarType dtype = dtype_name == "fp32" ? at::kFloat : at::kBFloat16;
  const comm::Group group = bench::join(launch::launch_context_from_env());
  mode == "sp" || mode == "dp" ? run<nn::Sharded<nn::kSequence>>(group, mode, dtype)
                               : run<nn::Invariant>(group, mode, dtype);
}

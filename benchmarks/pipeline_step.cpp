// One rank of the pipeline benchmark: eight micro-batches of the model of train_step through two stages, or
// half of them on each of two replicas; then norm, clip and AdamW.
//
//   bench_pipeline_step pp|dp [fp32|bf16]
//
// The head's product with 32000 words takes as long as 5.6 blocks, so seven blocks are one stage and the last
// block and the head are the other. Without idle time both modes take equally long; with two stages and m
// micro-batches a stage is idle for one of m + 1.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include "benchmarks/train_step_shape.h"
#include "benchmarks/worker.h"
#include "shardwise/base/memory_counter.h"
#include "shardwise/parallel/data_parallel.h"
#include "shardwise/train/optimizer.h"
#include "shardwise/train/stage_runner.h"

namespace {

using namespace shardwise;

constexpr int64_t kMicroBatches = 8, kSequences = 2;  // of a micro-batch

using Stream = nn::Invariant;

/// The blocks of a stage; empty: all.
std::vector<base::Range> stage_of(const comm::Group& pipeline) {
  if (pipeline.size() == 1) return {};
  return {pipeline.rank() == 0 ? base::Range{0, 7} : base::Range{7, 8}};
}

void run(const comm::Group& world, bool has_stages, at::ScalarType dtype) {
  const comm::Group alone, &pipeline = has_stages ? world : alone, &replicas = has_stages ? alone : world;
  model::DecoderWeights weights(bench::train_step_shape(), alone, dtype, model::WeightUse::training,
                                stage_of(pipeline));
  const train::BoundModel model = train::bind_to<Stream>(weights);
  parallel::DataParallel data_parallel(model.specs, replicas, parallel::Replication::shared);
  if (data_parallel.sets_weights()) weights.initialize_(/*seed=*/1);
  data_parallel.wait_until_set();
  train::StageRunner stage(model, weights, pipeline);
  train::AdamW optimizer(weights.used_parameters(), {}, data_parallel.updated());
  const at::Tensor ids = at::randint(0, 32000, {bench::kTrainStepLength, kSequences * kMicroBatches},
                                     at::make_generator<at::CPUGeneratorImpl>(7), at::kLong);
  const auto make = [&](int64_t index) -> train::MicroBatch {
    const at::Tensor own = ids.narrow(/*dim=*/1, index * kSequences, kSequences).contiguous();
    return {{own, own},
            nn::Step(alone, bench::kTrainStepLength),
            nn::LossOptions(static_cast<double>(bench::kTrainStepLength * kSequences * kMicroBatches))};
  };
  const base::Range own =
      base::Split::even("micro-batch", kMicroBatches, replicas.size()).range(replicas.rank());
  int64_t step_number = 0;
  double loss = 0;
  const std::function<void()> step = [&] {
    at::Tensor sum = stage.run(own, base::PipelineSchedule::one_forward_one_backward, make);
    data_parallel.sum_gradients_();
    const at::Tensor square = parallel::square_norm(model.specs, alone, data_parallel.owned(), world);
    optimizer.step_and_zero_grad_(++step_number, /*learning_rate=*/1e-4,
                                  parallel::clip_scale(square, sum, 1));
    data_parallel.finish_update_();
    world.all_reduce_(sum);
    loss = sum.item<double>();
  };
  bench::serve(world, step, [&] {
    return fmt::format("\"loss\": {:.5f}, \"busy_s\": {:.6f}, \"waiting_s\": {:.6f}", loss,
                       world.counters().busy_ns * 1e-9, world.counters().waiting_ns * 1e-9);
  });
}

}  // namespace

int main(int argc, char** argv) {
  base::keep_freed_memory();
  const std::string mode = argc < 2 ? "pp" : argv[1], dtype = argc < 3 ? "fp32" : argv[2];
  TORCH_CHECK_VALUE((mode == "pp" || mode == "dp") && (dtype == "fp32" || dtype == "bf16"),
                    "bench_pipeline_step: must be pp or dp, and fp32 or bf16; got ", mode, " ", dtype);
  run(bench::join(launch::launch_context_from_env()), mode == "pp",
      dtype == "fp32" ? at::kFloat : at::kBFloat16);
}

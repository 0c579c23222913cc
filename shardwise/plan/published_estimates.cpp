// What other estimators print for model states, beside ours of the same parameters.
#include <fmt/format.h>

#include "shardwise/plan/inference_plan.h"
#include "shardwise/plan/published.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::plan {
namespace {

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

/// DeepSpeed counts 18 bytes a parameter, and with ZeRO 3 the largest layer gathered twice in 16 bits. What
/// it offloads to the host takes nothing of the GPU. Its ZeRO 2 splits the weights too, although it keeps
/// them whole: 2 of 18 bytes over the ranks that ours does not have.
void add_deepspeed(std::vector<PublishedFigure>& figures) {
  struct Model {
    const char* name;
    int64_t parameters, largest_layer, ranks;
  };
  constexpr Model kLarge{"2851e6 parameters on 8 GPUs", 2'851'000'000, 32'000'000, 8},
      kT5Large{"t5-large on 4 GPUs", 737'668'096, 32'899'072, 4},
      kT5Small{"t5-small on 1 GPU", 60'506'624, 16'449'536, 1};
  constexpr StateBytes kAll{2, 4, 12}, kWeights{2, 0, 0}, kNone{0, 0, 0};
  struct Row {
    Model model;
    ZeroStage zero;
    StateBytes on_gpu;
    double gibibytes, last_digit;
  };
  constexpr double kMebibyte = 1 / 1024.0;  // printed without its fraction
  const Row rows[] = {{kLarge, ZeroStage::weights, kAll, 6.09, 0.005},
                      {kLarge, ZeroStage::weights, kWeights, 0.78, 0.005},
                      {kLarge, ZeroStage::weights, kNone, 0.12, 0.005},
                      {kT5Large, ZeroStage::weights, kAll, 3291 * kMebibyte, kMebibyte},
                      {kT5Large, ZeroStage::weights, kWeights, 477 * kMebibyte, kMebibyte},
                      {kT5Large, ZeroStage::weights, kNone, 125 * kMebibyte, kMebibyte},
                      {kT5Small, ZeroStage::weights, kAll, 1.08, 0.005},
                      {kT5Small, ZeroStage::weights, kWeights, 0.17, 0.005},
                      {kT5Small, ZeroStage::weights, kNone, 0.06, 0.005},
                      {kLarge, ZeroStage::gradients, kAll, 11.28, 0.67},
                      {kLarge, ZeroStage::gradients, kWeights, 5.31, 0.005}};
  for (const auto& [model, zero, on_gpu, gibibytes, last_digit] : rows) {
    const bool gathers = zero == ZeroStage::weights;
    const int64_t states = state_memory(model.parameters, on_gpu, zero, model.ranks).total(),
                  gathered = gathers ? 2 * 2 * model.largest_layer : 0;
    const char* offloaded = on_gpu.weight == 0      ? ", all offloaded"
                            : on_gpu.optimizer == 0 ? ", optimizer offloaded"
                                                    : "";
    figures.push_back({fmt::format("GiB of a rank with ZeRO {}{}", gathers ? 3 : 2, offloaded), model.name,
                       "DeepSpeed, docs/code-docs/source/memory.rst", gibibytes,
                       static_cast<double>(states + gathered) / kGiB, -last_digit / gibibytes,
                       last_digit / gibibytes});
  }
}

/// accelerate's totals are 1.9 % above the parameters' bytes; their ratios are exact.
void add_accelerate(std::vector<PublishedFigure>& figures) {
  const config::Config config = config::preset("mistral-7b");
  const auto gibibytes = [&](int64_t element_bytes) {
    return static_cast<double>(weight_bytes(config, /*tp=*/1, element_bytes)) / kGiB;
  };
  const char* source = "accelerate estimate-memory, zephyr-7b-alpha";
  figures.push_back({"GiB of weights", "Mistral 7B in fp32", source, 27.49, gibibytes(4), -0.02, 0});
  figures.push_back({"GiB of weights", "Mistral 7B in bf16", source, 13.74, gibibytes(2), -0.02, 0});
  TrainingTask task;
  task.element_bytes = task.gradient_bytes = 4;
  const double of_weights = static_cast<double>(task.state_bytes().total()) / 4;
  figures.push_back(
      {"training by Adam over weights", "fp32", source, 109.96 / 27.49, of_weights, -5e-4, 5e-4});
}

/// Megatron's script divides every parameter by tp, although norms and row biases are whole on each rank, and
/// leaves out GPT's learned positions (0.9 % of that first stage).
void add_megatron(std::vector<PublishedFigure>& figures) {
  struct Row {
    const char *name, *preset;
    Degrees degrees;
    double mebibytes, whole;  // whole: the largest part that is not divided
  };
  const Degrees distributed{.dp = 8, .zero = ZeroStage::optimizer};
  const Row rows[] = {{"Llama-3-8B, dp 8, distributed optimizer", "llama-3-8b", distributed, 57'436.90, 1e-7},
                      {"Llama-3-8B, tp 8", "llama-3-8b", {.tp = 8}, 17'231.07, 3e-4},
                      {"Llama-3-70B, tp 8, pp 4, dp 2, distributed optimizer",
                       "llama-3.1-70b",
                       {.tp = 8, .pp = 4, .dp = 2, .zero = ZeroStage::optimizer},
                       25'983.47,
                       3e-4},
                      {"GPT-3 175B, tp 8, pp 8", "gpt3-175b", {.tp = 8, .pp = 8}, 48'007.27, 9.5e-3}};
  for (const auto& [name, preset, degrees, mebibytes, whole] : rows) {
    TrainingTask task{.config = config::preset(preset), .sequence_length = 2048, .batch_size = 64};
    if (task.config.vocab_size == 50257) task.config.vocab_size = 51200;  // Megatron's, padded
    const MemoryByClass memory = TrainingPlanner(task, built_in_machine("a100")).evaluate(degrees).memory;
    const double planned = static_cast<double>(memory.weights + memory.gradients + memory.optimizer) / kMiB;
    figures.push_back({"MiB of weights and optimizer", name, "Megatron-LM, theoretical_memory_usage.py",
                       mebibytes, planned, -1e-7, whole});
  }
}

}  // namespace

std::vector<PublishedFigure> published_estimates() {
  std::vector<PublishedFigure> figures;
  add_deepspeed(figures);
  add_accelerate(figures);
  add_megatron(figures);
  return figures;
}

}  // namespace shardwise::plan

#include "shardwise/plan/largest.h"

#include <algorithm>

#include "shardwise/plan/sizes.h"

namespace shardwise::plan {
namespace {

/// Returns the numbers of ranks that divide `ranks`, are at most the query heads and allowed by the pin.
std::vector<int64_t> splits(int64_t ranks, const config::Config& config, const std::optional<int64_t>& pin) {
  std::vector<int64_t> found;
  for (int64_t tp = 1; tp <= std::min(ranks, config.num_attention_heads); ++tp)
    if (ranks % tp == 0 && (!pin || *pin == tp)) found.push_back(tp);
  return found;
}

/// A training step of one micro-batch that grows.
class GrowingStep {
 public:
  GrowingStep(const TrainingTask& task, const Machine& machine, const Degrees& degrees, Grown grown)
      : task_(task), machine_(machine), degrees_(degrees), grown_(grown) {}

  TrainingTask task(int64_t size) const {
    TrainingTask task = task_;
    if (grown_ == Grown::sequence) task.sequence_length = size;
    task.batch_size = degrees_.dp * micro_batch(size);
    return task;
  }
  TrainingPlan plan(int64_t size) const {
    Degrees degrees = degrees_;
    degrees.micro_batch_size = micro_batch(size);
    return TrainingPlanner(task(size), machine_).evaluate(degrees);
  }
  int64_t most() const {
    return grown_ == Grown::sequence ? task_.config.max_position_embeddings
                                     : kMostTokens / task_.sequence_length / degrees_.dp;
  }

 private:
  int64_t micro_batch(int64_t size) const { return grown_ == Grown::sequence ? 1 : size; }

  const TrainingTask& task_;
  const Machine& machine_;
  Degrees degrees_;
  Grown grown_;
};

LargestTraining largest_step(const GrowingStep& step, int64_t usable) {
  const int64_t size = largest_that_fits(
      step.most(), [&](int64_t tried) { return step.plan(tried).memory.total() <= usable; });
  LargestTraining largest{size, step.plan(std::max<int64_t>(size, 1))};
  if (size == 0) return largest;
  const TrainingTask task = step.task(size);
  largest.tokens_per_second =
      static_cast<double>(task.batch_size * task.sequence_length) / largest.plan.time.total();
  return largest;
}

}  // namespace

int64_t largest_that_fits(int64_t most, const std::function<bool(int64_t)>& fits) {
  int64_t fitting = 0, beyond = 1;
  while (beyond <= most && fits(beyond)) {
    fitting = beyond;
    beyond = std::min(2 * beyond, most + (beyond == most ? 1 : 0));
  }
  while (beyond - fitting > 1 && fitting > 0) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle) ? fitting : beyond) = middle;
  }
  return fitting;
}

std::vector<LargestTraining> largest_training(const TrainingTask& task, const Machine& machine,
                                              const Pins& pins, std::optional<int64_t> memory_cap,
                                              Grown grown) {
  const int64_t usable = machine.usable_bytes(memory_cap);
  std::vector<LargestTraining> all;
  for (const int64_t tp : splits(task.ranks, task.config, pins.tp)) {
    for (const bool sp : {false, true}) {
      if (sp && tp == 1) continue;
      if (task.config.experts && tp > 1 && !sp) continue;
      const Degrees degrees{.tp = tp,
                            .dp = task.ranks / tp,
                            .has_sequence_parallel = sp,
                            .zero = pins.zero.value_or(ZeroStage::none),
                            .recompute = pins.recompute.value_or(Recompute::none)};
      all.push_back(largest_step(GrowingStep(task, machine, degrees, grown), usable));
    }
  }
  return all;
}

std::vector<LargestInference> largest_inference(const InferenceTask& task, const Machine& machine,
                                                std::optional<int64_t> tp,
                                                std::optional<int64_t> memory_cap) {
  const int64_t usable = machine.usable_bytes(memory_cap);
  std::vector<LargestInference> all;
  for (const int64_t ranks : splits(task.ranks, task.config, tp)) {
    const InferenceDegrees degrees{.tp = ranks, .replicas = task.ranks / ranks};
    const auto plan = [&](int64_t of_replica) {
      InferenceTask grown = task;
      grown.texts = of_replica * degrees.replicas;
      return evaluate(grown, degrees, machine);
    };
    const int64_t most = kMostTokens / (task.prompt_tokens + task.new_tokens) / degrees.replicas;
    const int64_t texts =
        largest_that_fits(most, [&](int64_t tried) { return plan(tried).memory.total() <= usable; });
    all.push_back({texts * degrees.replicas, plan(std::max<int64_t>(texts, 1))});
  }
  return all;
}

}  // namespace shardwise::plan

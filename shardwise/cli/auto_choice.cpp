#include "shardwise/cli/auto_choice.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/log.h"
#include "shardwise/cli/planned_step.h"
#include "shardwise/cli/units.h"
#include "shardwise/train/job.h"

namespace shardwise::cli {
namespace {

using plan::Degrees;
using plan::InferencePlan;
using plan::TrainingPlan;

std::string in_words(const Degrees& degrees) {
  return fmt::format("tp {}{}, recompute {}", degrees.tp,
                     degrees.tp == 1                 ? ""
                     : degrees.has_sequence_parallel ? " with sequence parallelism"
                                                     : " without sequence parallelism",
                     base::name_of(degrees.recompute));
}

/// Returns "; next: tp 1: 20.10 ms, 7.80 ms more (compute +8.30 ms, collectives -0.50 ms)".
std::string next_text(const std::string& plan, double seconds, double more, double compute,
                      double collectives) {
  return fmt::format("; next: {}: {}, {} more (compute {:+.2f} ms, collectives {:+.2f} ms)", plan,
                     in_seconds(seconds), in_seconds(more), 1e3 * compute, 1e3 * collectives);
}

/// Returns why there is no second plan.
std::string no_next_text(size_t refused) {
  if (refused == 0) return "; the flags leave no other";
  return fmt::format("; memory does not suffice for the {} other{}", refused, refused == 1 ? "" : "s");
}

std::string next_of(const plan::SearchResult& found) {
  if (found.plans.size() < 2) return no_next_text(found.refused.size());
  const TrainingPlan &first = found.plans[0], &second = found.plans[1];
  const double collectives = second.time.tensor_parallel - first.time.tensor_parallel,
               more = second.time.total() - first.time.total();
  return next_text(in_words(second.degrees), second.time.total(), more, more - collectives, collectives);
}

std::string next_of(const plan::InferenceSearchResult& found, int64_t new_tokens) {
  if (found.plans.size() < 2) return no_next_text(found.refused.size());
  const InferencePlan &first = found.plans[0], &second = found.plans[1];
  const auto collectives_of = [&](const InferencePlan& plan) {
    return plan.prompts.tensor_parallel + static_cast<double>(new_tokens - 1) * plan.token.tensor_parallel;
  };
  const double collectives = collectives_of(second) - collectives_of(first),
               more = second.seconds(new_tokens) - first.seconds(new_tokens);
  return next_text(fmt::format("tp {}", second.degrees.tp), second.seconds(new_tokens), more,
                   more - collectives, collectives);
}

plan::Pins training_pins(const train::TrainOptions& o, const Flags& flags) {
  plan::Pins pins;
  pins.micro_batch_size = o.batch_size;
  if (flags.is_given("sequence-parallel")) pins.sequence_parallel = o.sequence_parallel;
  if (flags.is_given("recompute")) pins.recompute = train::recompute_of(o.recompute);
  return pins;
}

plan::SearchResult search_training(const train::Start& start, const Flags& flags,
                                   const AutoOptions& automatic) {
  const train::TrainOptions& o = start.options();
  const auto pinned = flags.is_given("tp") ? std::optional(o.tp) : std::nullopt;
  const plan::Host host = host_of("train", ranks_of_choice("train", start.config, pinned), automatic);
  plan::SearchResult found = plan::search_host(training_task(start.config, o), host, training_pins(o, flags));
  if (!found.plans.empty()) return found;
  std::vector<TooLarge> all;
  for (const plan::Refused& refused : found.refused)
    all.push_back({in_words(refused.degrees), refused.degrees.tp, refused.needed_bytes});
  throw_too_large("train", host, all);
}

/// Sets what `flags` do not give, and returns it as flags.
std::vector<std::string> set_(train::TrainOptions& o, const Degrees& degrees, const Flags& flags) {
  std::vector<std::string> chosen;
  if (!flags.is_given("tp")) {
    o.tp = degrees.tp;
    chosen.insert(chosen.end(), {"--tp", std::to_string(o.tp)});
  }
  if (!flags.is_given("sequence-parallel") && degrees.tp > 1) {
    o.sequence_parallel = degrees.has_sequence_parallel;
    chosen.push_back(o.sequence_parallel ? "--sequence-parallel" : "--no-sequence-parallel");
  }
  if (!flags.is_given("recompute")) {
    o.recompute = base::name_of(degrees.recompute);
    chosen.insert(chosen.end(), {"--recompute", o.recompute});
  }
  return chosen;
}

}  // namespace

std::vector<std::string> choose_(train::TrainOptions& options, const Flags& flags,
                                 const AutoOptions& automatic) {
  const train::Start start = train::start_of(options);
  refuse_unplanned("train", start.options().split_batch, "--split-batch");
  const plan::SearchResult found = search_training(start, flags, automatic);
  const TrainingPlan& best = found.plans.front();
  base::log_info(fmt::format("train: --auto chooses {}: planned {} a step, {} a rank{}",
                             in_words(best.degrees), in_seconds(best.time.total()),
                             in_megabytes(best.memory.total()), next_of(found)));
  return set_(options, best.degrees, flags);
}

int64_t chosen_ranks(const plan::InferenceTask& task, std::optional<int64_t> pinned,
                     const AutoOptions& automatic) {
  const plan::Host host = host_of("generate", ranks_of_choice("generate", task.config, pinned), automatic);
  const plan::InferenceSearchResult found = plan::search_host(task, host);
  if (found.plans.empty()) {
    std::vector<TooLarge> all;
    for (const plan::RefusedInference& refused : found.refused)
      all.push_back({fmt::format("tp {}", refused.degrees.tp), refused.degrees.tp, refused.needed_bytes});
    throw_too_large("generate", host, all);
  }
  const InferencePlan& best = found.plans.front();
  base::log_info(fmt::format("generate: --auto chooses tp {}: planned {} for {} text{}, {} a rank{}",
                             best.degrees.tp, in_seconds(best.seconds(task.new_tokens)), task.texts,
                             task.texts == 1 ? "" : "s", in_megabytes(best.memory.total()),
                             next_of(found, task.new_tokens)));
  return best.degrees.tp;
}

}  // namespace shardwise::cli

#include "shardwise/cli/auto_choice.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/base/log.h"
#include "shardwise/cli/planned_step.h"
#include "shardwise/cli/units.h"
#include "shardwise/config/layout.h"
#include "shardwise/launch/launch.h"
#include "shardwise/plan/sizes.h"
#include "shardwise/train/job.h"

namespace shardwise::cli {
namespace {

using plan::Degrees;
using plan::InferencePlan;
using plan::TrainingPlan;

std::string in_words(const Degrees& degrees) {
  std::string words = fmt::format("tp {}", degrees.tp);
  if (degrees.tp > 1)
    words += degrees.has_sequence_parallel ? " with sequence parallelism" : " without sequence parallelism";
  if (degrees.pp > 1) words += fmt::format(", pp {}", degrees.pp);
  if (degrees.chunks > 1) words += fmt::format(", virtual stages {}", degrees.chunks);
  if (degrees.dp > 1) words += fmt::format(", dp {}", degrees.dp);
  return words + fmt::format(", micro-batches of {}, recompute {}", degrees.micro_batch_size,
                             base::name_of(degrees.recompute));
}

/// Returns "; next: tp 1: 20.10 ms, 7.80 ms more (compute +8.30 ms, communication -0.50 ms)".
std::string next_text(const std::string& plan, double seconds, double more, double compute,
                      double communication) {
  return fmt::format("; next: {}: {}, {} more (compute {:+.2f} ms, communication {:+.2f} ms)", plan,
                     in_seconds(seconds), in_seconds(more), 1e3 * compute, 1e3 * communication);
}

/// Returns why there is no second plan, if memory does not suffice for `too_large` others.
std::string no_next_text(size_t too_large) {
  if (too_large == 0) return "; the flags leave no other";
  return fmt::format("; memory does not suffice for the {} other{}", too_large, too_large == 1 ? "" : "s");
}

std::vector<TooLarge> too_large(const std::vector<plan::Refused>& refused) {
  std::vector<TooLarge> all;
  for (const auto& [degrees, reason, bytes] : refused)
    if (bytes > 0) all.push_back({in_words(degrees), degrees.tp * degrees.pp * degrees.dp, bytes});
  return all;
}

std::string next_of(const plan::SearchResult& found) {
  if (found.plans.size() < 2) return no_next_text(too_large(found.refused).size());
  const TrainingPlan &first = found.plans[0], &second = found.plans[1];
  const double communication = second.time.communication() - first.time.communication(),
               more = second.time.total() - first.time.total();
  return next_text(in_words(second.degrees), second.time.total(), more, more - communication, communication);
}

std::string next_of(const plan::InferenceSearchResult& found, int64_t new_tokens) {
  if (found.plans.size() < 2) return no_next_text(found.refused.size());
  const InferencePlan &first = found.plans[0], &second = found.plans[1];
  const auto collectives_of = [&](const InferencePlan& plan) {
    return plan.prompts.tensor_parallel + static_cast<double>(new_tokens - 1) * plan.token.tensor_parallel;
  };
  const double communication = collectives_of(second) - collectives_of(first),
               more = second.seconds(new_tokens) - first.seconds(new_tokens);
  return next_text(fmt::format("tp {}", second.degrees.tp), second.seconds(new_tokens), more,
                   more - communication, communication);
}

/// The step of `options`, for any number of ranks.
plan::TrainingTask step_of(const train::Start& start) {
  const train::TrainOptions& o = start.options();
  plan::TrainingTask task = training_task(start.config, o);
  task.batch_size = o.batch_size * o.grad_accum;
  return task;
}

/// Without --grad-accum the step may be cut into other micro-batches.
plan::Pins training_pins(const train::TrainOptions& o, const Flags& flags) {
  const auto given = [&](const char* flag, auto value) {
    return flags.is_given(flag) ? std::optional(value) : std::nullopt;
  };
  return {.tp = given("tp", o.tp),
          .cp = 1,
          .pp = given("pp", o.pp),
          .dp = given("dp", o.dp),
          .ep = 1,
          .micro_batch_size = given("grad-accum", int64_t{o.batch_size}),
          .chunks = given("virtual-stages", o.virtual_stages),
          .zero = static_cast<plan::ZeroStage>(o.zero),
          .recompute = given("recompute", train::recompute_of(o.recompute)),
          .sequence_parallel = given("sequence-parallel", o.sequence_parallel)};
}

/// Multiples of the ranks that the given degrees need.
std::vector<int64_t> ranks_to_compare(const train::TrainOptions& o, const plan::Pins& pins) {
  launch::check_started_ranks(o.ranks());
  if (pins.tp && pins.pp && pins.dp) return {o.ranks()};
  std::vector<int64_t> ranks = plan::ranks_to_compare(most_ranks_of_choice() / o.ranks());
  for (int64_t& count : ranks) count *= o.ranks();
  return ranks;
}

void check_planned(const train::TrainOptions& o, const config::Config& config) {
  refuse_unplanned("train", config::element_bytes(config) > 4, "--dtype fp64");
  refuse_unplanned("train", o.split_batch, "--split-batch");
  refuse_unplanned("train", !o.pp_layers.empty(), "--pp-layers");
  refuse_unplanned("train", o.pp_schedule != "1f1b", "--pp-schedule afab");
}

[[noreturn]] void throw_none_found(const plan::SearchResult& found, const plan::Host& host) {
  const std::vector<TooLarge> all = too_large(found.refused);
  if (!all.empty()) throw_too_large("train", host, all);
  TORCH_CHECK_VALUE(false, "train: --auto must be left a split that can run; got ",
                    found.refused.empty()
                        ? "none"
                        : in_words(found.refused.front().degrees) + ": " + found.refused.front().reason,
                    " [SW0883]");
}

plan::SearchResult search_training(const train::Start& start, const Flags& flags,
                                   const AutoOptions& automatic) {
  const train::TrainOptions& o = start.options();
  check_planned(o, start.config);
  config::check_ranks("train", start.config, o.tp);
  const plan::Pins pins = training_pins(o, flags);
  const plan::Host host = host_of("train", ranks_to_compare(o, pins), automatic);
  plan::SearchResult found = plan::search_host(step_of(start), host, pins);
  if (found.plans.empty()) throw_none_found(found, host);
  return found;
}

/// Sets options, and collects them as flags.
class Choice {
 public:
  explicit Choice(const Flags& flags) : flags_(flags) {}

  template <class Option>
  void set_(const std::string& name, Option& option, int64_t value) {
    option = value;
    add_({"--" + name, std::to_string(value)});
  }
  template <class Option>
  void set_unless_given_(const std::string& name, Option& option, int64_t value) {
    if (!flags_.is_given(name)) set_(name, option, value);
  }
  void add_(const std::vector<std::string>& words) {
    chosen_.insert(chosen_.end(), words.begin(), words.end());
  }
  const std::vector<std::string>& chosen() const { return chosen_; }

 private:
  const Flags& flags_;
  std::vector<std::string> chosen_;
};

/// Cuts the step of `whole` into micro-batches of `size`. Evaluations keep their number of sequences.
void cut_(train::TrainOptions& o, Choice& choice, const train::TrainOptions& whole, int64_t size) {
  const auto pieces = [&](int64_t micro_batches) {
    const int64_t most = std::numeric_limits<int64_t>::max() / whole.batch_size;
    return plan::parts_of(std::min(micro_batches, most) * whole.batch_size, size);
  };
  choice.set_("batch-size", o.batch_size, size);
  choice.set_("grad-accum", o.grad_accum, pieces(whole.grad_accum));
  choice.set_("eval-batches", o.eval_batches, pieces(whole.eval_batches));
}

/// Sets what `flags` do not give, and returns it as flags.
std::vector<std::string> set_(train::TrainOptions& o, const train::TrainOptions& whole,
                              const Degrees& degrees, const Flags& flags) {
  Choice choice(flags);
  choice.set_unless_given_("tp", o.tp, degrees.tp);
  choice.set_unless_given_("pp", o.pp, degrees.pp);
  choice.set_unless_given_("virtual-stages", o.virtual_stages, degrees.chunks);
  choice.set_unless_given_("dp", o.dp, degrees.dp);
  if (!flags.is_given("grad-accum")) cut_(o, choice, whole, degrees.micro_batch_size);
  if (!flags.is_given("sequence-parallel") && degrees.tp > 1) {
    o.sequence_parallel = degrees.has_sequence_parallel;
    choice.add_({o.sequence_parallel ? "--sequence-parallel" : "--no-sequence-parallel"});
  }
  if (!flags.is_given("recompute")) {
    o.recompute = base::name_of(degrees.recompute);
    choice.add_({"--recompute", o.recompute});
  }
  return choice.chosen();
}

std::vector<int64_t> ranks_to_compare(const config::Config& config, std::optional<int64_t> pinned) {
  if (!pinned) return plan::ranks_to_compare(std::min(most_ranks_of_choice(), config.num_attention_heads));
  config::check_ranks("generate", config, *pinned);
  return {*pinned};
}

}  // namespace

std::vector<std::string> choose_(train::TrainOptions& options, const Flags& flags,
                                 const AutoOptions& automatic) {
  const train::Start start = train::start_of(options);
  const plan::SearchResult found = search_training(start, flags, automatic);
  const TrainingPlan& best = found.plans.front();
  base::log_info(fmt::format("train: --auto chooses {}: planned {} a step, {} a rank{}",
                             in_words(best.degrees), in_seconds(best.time.total()),
                             in_megabytes(best.memory.total()), next_of(found)));
  return set_(options, start.options(), best.degrees, flags);
}

int64_t chosen_ranks(const plan::InferenceTask& task, std::optional<int64_t> pinned,
                     const AutoOptions& automatic) {
  const plan::Host host = host_of("generate", ranks_to_compare(task.config, pinned), automatic);
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

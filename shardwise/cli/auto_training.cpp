#include "shardwise/cli/auto_training.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/base/log.h"
#include "shardwise/cli/planned_step.h"
#include "shardwise/cli/train_workload.h"
#include "shardwise/cli/units.h"
#include "shardwise/config/layout.h"
#include "shardwise/launch/launch.h"
#include "shardwise/plan/divisors.h"
#include "shardwise/plan/sizes.h"
#include "shardwise/train/job.h"

namespace shardwise::cli {
namespace {

using plan::Degrees;
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

std::vector<TooLarge> too_large(const std::vector<plan::Refused>& refused) {
  std::vector<TooLarge> all;
  for (const auto& [degrees, reason, bytes] : refused)
    if (bytes > 0) all.push_back({in_words(degrees), degrees.tp * degrees.pp * degrees.dp, bytes});
  return all;
}

/// Returns `whole` with its step split that way. Evaluations keep their number of sequences.
train::TrainOptions split(const train::TrainOptions& whole, const Degrees& degrees) {
  train::TrainOptions o = whole;
  o.tp = degrees.tp;
  o.pp = degrees.pp;
  o.virtual_stages = degrees.chunks;
  o.dp = degrees.dp;
  if (o.tp > 1) o.sequence_parallel = degrees.has_sequence_parallel;
  o.recompute = base::name_of(degrees.recompute);
  const int64_t pieces = whole.batch_size / degrees.micro_batch_size;
  o.batch_size = degrees.micro_batch_size;
  o.grad_accum = whole.grad_accum * pieces;
  o.eval_batches = std::min(whole.eval_batches, std::numeric_limits<int64_t>::max() / pieces) * pieces;
  return o;
}

/// A plan, and the memory of its run.
struct Candidate {
  TrainingPlan plan;
  int64_t bytes_of_fullest = 0, bytes_of_all = 0;  // ranks
};

Candidate candidate_of(const TrainingPlan& plan, const train::Start& start) {
  const train::TrainOptions options = split(start.options(), plan.degrees);
  Candidate candidate{plan};
  for (const plan::Peak& peak : planned_peaks(start.config, options, storage_on_host(options))) {
    candidate.bytes_of_fullest = std::max(candidate.bytes_of_fullest, peak.bytes());
    candidate.bytes_of_all += peak.bytes();
  }
  return candidate;
}

/// Returns the candidate if it does not fit.
std::optional<TooLarge> if_too_large(const Candidate& candidate, const plan::Host& host) {
  const Degrees& degrees = candidate.plan.degrees;
  const int64_t ranks = degrees.tp * degrees.pp * degrees.dp;
  if (candidate.bytes_of_all > host.memory_bytes)
    return TooLarge{in_words(degrees), ranks, plan::parts_of(candidate.bytes_of_all, ranks)};
  if (host.rank_cap && candidate.bytes_of_fullest > *host.rank_cap)
    return TooLarge{in_words(degrees), ranks, candidate.bytes_of_fullest};
  return std::nullopt;
}

/// The fastest two plans whose runs fit, and all that do not, as far as they were tried.
struct Fitting {
  std::vector<Candidate> plans;
  std::vector<TooLarge> too_large;
};

/// The search estimates memory; here it is that of the run, as its start-up plans it.
Fitting fitting(const plan::SearchResult& found, const train::Start& start, const plan::Host& host) {
  Fitting result{{}, too_large(found.refused)};
  for (const TrainingPlan& plan : found.plans) {
    const Candidate candidate = candidate_of(plan, start);
    if (const auto large = if_too_large(candidate, host)) {
      result.too_large.push_back(*large);
    } else {
      result.plans.push_back(candidate);
      if (result.plans.size() == 2) break;
    }
  }
  return result;
}

std::string next_of(const Fitting& found) {
  if (found.plans.size() < 2) return no_next_text(found.too_large.size());
  const plan::StepTime &first = found.plans[0].plan.time, &second = found.plans[1].plan.time;
  const double communication = second.communication() - first.communication(),
               more = second.total() - first.total();
  return next_text(in_words(found.plans[1].plan.degrees), second.total(), more, more - communication,
                   communication);
}

/// The step of `options`, for any number of ranks.
plan::TrainingTask step_of(const train::Start& start) {
  const train::TrainOptions& o = start.options();
  plan::TrainingTask task = training_task(start.config, o);
  task.batch_size = o.batch_size * o.grad_accum;
  return task;
}

plan::Pins training_pins(const train::TrainOptions& o, const Flags& flags) {
  const auto given = [&](const char* flag, auto value) {
    return flags.is_given(flag) ? std::optional(value) : std::nullopt;
  };
  return {.tp = given("tp", o.tp),
          .cp = 1,
          .pp = given("pp", o.pp),
          .dp = given("dp", o.dp),
          .ep = 1,
          .micro_batch_size = o.batch_size,
          .chunks = given("virtual-stages", o.virtual_stages),
          .zero = static_cast<plan::ZeroStage>(o.zero),
          .recompute = given("recompute", train::recompute_of(o.recompute)),
          .sequence_parallel = given("sequence-parallel", o.sequence_parallel)};
}

/// Without --grad-accum a step may be cut into smaller micro-batches.
std::vector<plan::Pins> choices_of(const plan::Pins& pins, const Flags& flags) {
  if (flags.is_given("grad-accum")) return {pins};
  std::vector<plan::Pins> choices;
  for (const int64_t size : plan::divisors(*pins.micro_batch_size)) {
    choices.push_back(pins);
    choices.back().micro_batch_size = size;
  }
  return choices;
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

/// Checks that the flags leave a split that can run, which depends on no machine: nothing is measured yet.
void check_has_split(const plan::TrainingTask& step, const std::vector<int64_t>& ranks,
                     const std::vector<plan::Pins>& choices) {
  plan::Host any{.memory_bytes = std::numeric_limits<int64_t>::max()};
  const plan::Machine machine = plan::built_in_machine(plan::machine_names().front());
  for (const int64_t count : ranks) any.machines.emplace(count, machine);
  const plan::SearchResult found = plan::search_host(step, any, choices);
  TORCH_CHECK_VALUE(!found.plans.empty(), "train: --auto must be left a split that can run; got ",
                    found.refused.empty()
                        ? "none"
                        : in_words(found.refused.front().degrees) + ": " + found.refused.front().reason,
                    " [SW0883]");
}

Fitting search_training(const train::Start& start, const Flags& flags, const AutoOptions& automatic) {
  const train::TrainOptions& o = start.options();
  check_planned(o, start.config);
  config::check_ranks("train", start.config, o.tp);
  const plan::Pins pins = training_pins(o, flags);
  const std::vector<int64_t> ranks = ranks_to_compare(o, pins);
  const plan::TrainingTask step = step_of(start);
  const std::vector<plan::Pins> choices = choices_of(pins, flags);
  check_has_split(step, ranks, choices);
  const plan::Host host = host_of("train", ranks, automatic);
  const Fitting fits = fitting(plan::search_host(step, host, choices), start, host);
  if (fits.plans.empty()) throw_too_large("train", host, fits.too_large);
  return fits;
}

/// Sets what `flags` do not give to that of `chosen`, and returns it as flags.
std::vector<std::string> set_(train::TrainOptions& o, const train::TrainOptions& chosen, const Flags& flags) {
  std::vector<std::string> words;
  const auto set = [&](const std::string& name, auto& option, int64_t value) {
    option = value;
    words.insert(words.end(), {"--" + name, std::to_string(value)});
  };
  if (!flags.is_given("tp")) set("tp", o.tp, chosen.tp);
  if (!flags.is_given("pp")) set("pp", o.pp, chosen.pp);
  if (!flags.is_given("virtual-stages")) set("virtual-stages", o.virtual_stages, chosen.virtual_stages);
  if (!flags.is_given("dp")) set("dp", o.dp, chosen.dp);
  if (!flags.is_given("grad-accum")) {
    set("batch-size", o.batch_size, chosen.batch_size);
    set("grad-accum", o.grad_accum, chosen.grad_accum);
    set("eval-batches", o.eval_batches, chosen.eval_batches);
  }
  if (!flags.is_given("sequence-parallel") && chosen.tp > 1) {
    o.sequence_parallel = chosen.sequence_parallel;
    words.push_back(o.sequence_parallel ? "--sequence-parallel" : "--no-sequence-parallel");
  }
  if (!flags.is_given("recompute")) {
    o.recompute = chosen.recompute;
    words.insert(words.end(), {"--recompute", o.recompute});
  }
  return words;
}

}  // namespace

std::vector<std::string> choose_(train::TrainOptions& options, const Flags& flags,
                                 const AutoOptions& automatic) {
  const train::Start start = train::start_of(options);
  const Fitting found = search_training(start, flags, automatic);
  const Candidate& best = found.plans.front();
  base::log_info(fmt::format("train: --auto chooses {}: planned {} a step, {} a rank{}",
                             in_words(best.plan.degrees), in_seconds(best.plan.time.total()),
                             in_megabytes(best.bytes_of_fullest), next_of(found)));
  return set_(options, split(start.options(), best.plan.degrees), flags);
}

}  // namespace shardwise::cli

#include "shardwise/plan/decision_matrix.h"

namespace shardwise::plan {
namespace {

/// A run and the degrees that are advised for it.
struct Case {
  const char *model, *machine;
  int64_t ranks, batch_size, sequence_length;
  struct {
    int64_t tp, cp, pp, ep;
  } advice;
  const char* source;
};

constexpr const char *kTpOfNode = "guides: TP 8 within the node",
                     *kStages = "guides: TP 8 within the node, stages across",
                     *kMegatron = "Megatron-LM, parallelism guide";
constexpr Case kCases[] = {
    {"llama-3.1-8b", "h100", 8, 64, 8192, {8, 1, 1, 1}, kTpOfNode},
    {"llama-3.1-8b", "h100", 8, 64, 8192, {1, 2, 1, 1}, kMegatron},
    {"llama-3.1-8b", "h100", 8, 8, 131072, {8, 1, 1, 1}, kTpOfNode},
    {"llama-3.1-70b", "h100", 64, 128, 8192, {8, 1, 8, 1}, kStages},
    {"llama-3.1-70b", "h100", 64, 128, 8192, {4, 2, 4, 1}, kMegatron},
    {"llama-3.1-70b", "p4d", 64, 128, 8192, {8, 1, 8, 1}, kStages},
    {"llama-3.1-405b", "h100", 1024, 1024, 8192, {8, 2, 8, 1}, kMegatron},
    {"llama-3.1-405b", "h100", 16384, 2048, 8192, {8, 1, 16, 1}, "Llama 3, arXiv 2407.21783, table 4"},
    {"llama-3.1-405b", "h100", 16384, 128, 131072, {8, 16, 16, 1}, "Llama 3, arXiv 2407.21783, table 4"},
    {"gpt3-175b", "a100", 1024, 1536, 2048, {8, 1, 8, 1}, "Megatron-LM, arXiv 2205.05198, table 3"},
    {"mixtral-8x7b", "h100", 64, 256, 4096, {1, 1, 4, 8}, kMegatron},
    {"deepseek-v3", "h100", 2048, 15360, 4096, {1, 1, 16, 64}, "DeepSeek-V3, arXiv 2412.19437, section 3.2"}};

std::optional<TrainingPlan> fastest_with(const TrainingTask& task, const Machine& machine, const Pins& pins) {
  const SearchResult found = search(task, machine, pins, /*memory_cap=*/std::nullopt);
  return found.plans.empty() ? std::nullopt : std::optional{found.plans.front()};
}

Decision decide(const Case& one) {
  Decision decision;
  decision.model = one.model;
  decision.machine = one.machine;
  decision.source = one.source;
  decision.task = {.config = config::preset_to_plan(one.model),
                   .ranks = one.ranks,
                   .sequence_length = one.sequence_length,
                   .batch_size = one.batch_size};
  decision.advice.tp = one.advice.tp;
  decision.advice.cp = one.advice.cp;
  decision.advice.pp = one.advice.pp;
  decision.advice.ep = one.advice.ep;
  const Machine machine = built_in_machine(one.machine);
  decision.fastest = fastest_with(decision.task, machine, {});
  decision.advised = fastest_with(decision.task, machine, decision.advice);
  return decision;
}

}  // namespace

std::vector<Decision> decision_matrix() {
  std::vector<Decision> decisions;
  for (const Case& one : kCases) decisions.push_back(decide(one));
  return decisions;
}

}  // namespace shardwise::plan

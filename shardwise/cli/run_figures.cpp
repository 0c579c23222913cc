#include "shardwise/cli/run_figures.h"

#include <nlohmann/json.hpp>

#include "shardwise/cli/output.h"
#include "shardwise/cli/units.h"
#include "shardwise/plan/peak.h"

namespace shardwise::cli {

using Json = nlohmann::ordered_json;

namespace {

Json run_json(const train::Job& job) {
  const train::TrainOptions& o = job.options();
  return {{"description", describe(job)},
          {"parameters", config::parameter_count(job.config())},
          {"dtype", job.config().dtype},
          {"tp", o.tp},
          {"pp", o.pp},
          {"dp", o.dp},
          {"zero", o.zero},
          {"sequence_parallel", o.tp > 1 && o.sequence_parallel},
          {"recompute", o.recompute},
          {"layers", job.config().num_hidden_layers},
          {"tokens_per_step", o.seq_len * o.batch_size * o.grad_accum}};
}

Json step_json(const train::StepRecord& record) {
  Json step{{"step", record.step}, {"loss", record.loss}};
  if (record.val_loss) step["val_loss"] = *record.val_loss;
  for (const train::Usage& usage : record.usage) {
    step["step_ms"].push_back(milliseconds(usage.step_ns));
    step["comm_ms"].push_back(milliseconds(usage.comm_ns));
    if (usage.wait_ns) step["wait_ms"].push_back(milliseconds(*usage.wait_ns));
  }
  return step;
}

Json measured_json(const train::MemoryBreakdown& held) {
  Json classes{{"weights", held.weights},
               {"main gradients", held.main_gradients + held.owned_gradients},
               {"optimizer", held.optimizer},
               {"activations", held.peak_private - held.private_states()}};
  if (held.peak_symmetric_heap) classes["shared memory"] = *held.peak_symmetric_heap - held.shared_states;
  return classes;
}

Json planned_json(const plan::Peak& peak) {
  const plan::ModelStates& states = peak.states;
  return {{"weights", states.weights},
          {"main gradients", states.main_gradients + states.owned_gradients},
          {"optimizer", states.master_weights + states.optimizer_moments},
          {"activations", total(peak.private_memory.allocations, plan::Pool::private_memory)},
          {"shared memory", peak.symmetric_heap_bytes() - peak.shared_states}};
}

Json rank_json(const train::MemoryBreakdown& held, const RankReport& of_rank) {
  Json json{{"comm_bytes", of_rank.measured.comm_bytes},
            {"memory", measured_json(held)},
            {"expected_comm_bytes", of_rank.expected.sent.all}};
  if (of_rank.measured.copied_bytes) json["copied_bytes"] = *of_rank.measured.copied_bytes;
  if (of_rank.expected.peak) json["expected_memory"] = planned_json(*of_rank.expected.peak);
  return json;
}

Json parameter_json(const train::ShardShapes& parameter) {
  return {{"name", parameter.name}, {"shape", parameter.shape}, {"rank_shapes", parameter.by_rank}};
}

}  // namespace

std::string figures_json(const train::Job& job, const std::vector<train::StepRecord>& steps,
                         const TrainReport& report) {
  Json json{{"run", run_json(job)}};
  json["run"].update(to_json(report.times));
  for (const train::StepRecord& record : steps) json["steps"].push_back(step_json(record));
  const train::ShardReport& inventory = report.summary.shard_report;
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    json["ranks"].push_back(rank_json(inventory.ranks[rank], report.ranks[rank]));
  }
  for (const train::ShardShapes& parameter : inventory.parameters) {
    json["parameters"].push_back(parameter_json(parameter));
  }
  return json_line(json);
}

}  // namespace shardwise::cli

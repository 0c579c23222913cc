#include "shardwise/doctor/mesh_checks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>

#include "shardwise/comm/gather_values.h"
#include "shardwise/train/trainer.h"

namespace shardwise::doctor {
namespace {

using train::TrainOptions;

constexpr int64_t kStepsOnMesh = 3, kMicroBatches = 3;

/// What a rank trains of a parameter.
struct Trained {
  at::Tensor value, exp_avg, exp_avg_sq;
};

/// The steps of one rank and what it has after them, by parameter.
struct OneRank {
  std::vector<train::StepRecord> steps;
  std::map<std::string, Trained> trained;
};

TrainOptions options_of(const TrainingSmokeTest& smoke_test) {
  TrainOptions options = smoke_test_options(smoke_test, plan::Parallelism::tp_sp, /*tp=*/1);
  options.dtype = "fp64";
  options.grad_accum = kMicroBatches;
  options.dropout = options.attention_dropout = 0.1;
  return options;
}

OneRank run_one_rank(const TrainOptions& options) {
  const train::Job job(options);
  train::Trainer trainer(job, train::one_replica(comm::Group()));
  OneRank result;
  for (int64_t i = 0; i < kStepsOnMesh; ++i) result.steps.push_back(trainer.step());
  for (const train::ParameterState& state : trainer.optimizer().state())
    result.trained[state.parameter->name] = {state.parameter->value.detach().clone(), state.exp_avg.clone(),
                                             state.exp_avg_sq.clone()};
  return result;
}

at::Tensor shard_of(const at::Tensor& full, const parallel::Parameter& parameter, int tp_rank) {
  if (parameter.rule.is_replicated()) return full;
  std::vector<at::Tensor> pieces;
  for (const base::ShardRule::Piece& piece : parameter.rule.pieces(tp_rank))
    pieces.push_back(full.narrow(parameter.rule.dim, piece.global_begin, piece.size));
  return at::cat(pieces, parameter.rule.dim);
}

/// Returns true if `local` has rows `rows` of the shard, up to rounding.
bool is_close(const at::Tensor& local, const at::Tensor& shard, const base::Range& rows) {
  if (rows.size() * shard.numel() == 0) return true;
  const double largest = (local - shard.narrow(0, rows.begin, rows.size())).abs().max().item<double>();
  return largest <= kFp64Tolerance * shard.abs().max().item<double>();  // false for NaN
}

/// Returns what differs from the steps of one rank on this rank, or "".
std::string step_error(const train::StepRecord& step, const train::StepRecord& expected) {
  const auto differs = [](double a, double b) { return !(std::abs(a - b) <= kFp64Tolerance * std::abs(b)); };
  if (!differs(step.loss, expected.loss) && !differs(step.grad_norm, expected.grad_norm)) return "";
  return fmt::format("step {} has loss {:.12g} and norm {:.12g}; one rank has {:.12g} and {:.12g}", step.step,
                     step.loss, step.grad_norm, expected.loss, expected.grad_norm);
}

std::string state_error(const train::Trainer& trainer, const OneRank& expected, int tp_rank) {
  for (const train::ParameterState& state : trainer.optimizer().state()) {
    const parallel::Parameter& parameter = *state.parameter;
    const Trained& full = expected.trained.at(parameter.name);
    const base::Range kept = parameter.kept_rows();
    const auto error = [&](const char* what, const at::Tensor& local, const at::Tensor& of_one_rank,
                           const base::Range& rows) {
      const bool is_same = is_close(local, shard_of(of_one_rank, parameter, tp_rank), rows);
      return is_same ? ""
                     : fmt::format("{}{} differs from one rank's after {} steps", what, parameter.name,
                                   kStepsOnMesh);
    };
    for (const std::string& text :
         {error("", parameter.value_rows(kept), full.value, kept),
          error("the first moment of ", state.exp_avg, full.exp_avg, state.rows),
          error("the second moment of ", state.exp_avg_sq, full.exp_avg_sq, state.rows)})
      if (!text.empty()) return text;
  }
  return "";
}

/// Returns which group of the mesh has other ranks than the mesh says, or "". Collective.
std::string group_error(const comm::Mesh& mesh) {
  for (const comm::Mesh::Axis& axis : mesh.axes()) {
    const comm::Group& group = mesh.group(axis.name);
    if (comm::gather_values(mesh.rank(), group) != mesh.ranks(axis.name) ||
        group.rank() != mesh.coordinate(axis.name))
      return "the group of " + axis.name + " has other ranks than the mesh";
  }
  return "";
}

std::string run_on(const comm::Mesh& mesh, const TrainOptions& options, const OneRank& expected) {
  const std::string wrong_group = group_error(mesh);
  const train::Job job(options);
  train::Trainer trainer(job, mesh);
  std::string error = wrong_group;
  for (const train::StepRecord& of_one_rank : expected.steps) {
    const std::string of_step = step_error(trainer.step(), of_one_rank);
    if (error.empty()) error = of_step;
  }
  const std::string of_states = state_error(trainer, expected, mesh.coordinate(train::kTensorAxis));
  return error.empty() ? of_states : error;
}

/// What replicas split, and whether those of a host share the weights.
struct Splitting {
  int64_t zero;
  const char* shared_weights;
};

std::vector<Splitting> splittings_of(const TrainOptions& mesh) {
  std::vector<Splitting> all{{1, "auto"}};
  if (mesh.dp > 1) all = {{0, "off"}, {1, "off"}, {1, "auto"}};
  // Stages have whole gradients and weights.
  if (mesh.dp > 1 && mesh.pp == 1) all.insert(all.end(), {{2, "auto"}, {3, "off"}});
  return all;
}

/// Returns a run's options for every mesh of `ranks` ranks and every splitting.
std::vector<TrainOptions> all_meshes(const TrainOptions& one_rank, int ranks, int64_t layers) {
  std::vector<TrainOptions> all;
  for (int64_t pp = 1; pp <= layers; ++pp) {
    for (int64_t dp = 1; pp * dp <= ranks; ++dp) {
      TrainOptions options = one_rank;
      options.pp = pp, options.dp = dp, options.tp = ranks / (pp * dp);
      if (options.ranks() != ranks || options.tp == ranks) continue;
      for (const auto& [zero, shared_weights] : splittings_of(options)) {
        options.zero = zero, options.shared_weights = shared_weights;
        all.push_back(options);
      }
    }
  }
  return all;
}

std::string name_of(const TrainOptions& o) {
  std::vector<std::string> parts;
  if (o.pp > 1) parts.push_back(fmt::format("pp {}", o.pp));
  if (o.dp > 1) {
    const bool may_share = o.zero > 0 && o.zero < 3 && o.shared_weights == "auto";
    parts.push_back(fmt::format("dp {}, zero {}{}", o.dp, o.zero, may_share ? ", one copy" : ""));
  }
  if (o.tp > 1) parts.push_back(fmt::format("tp {}", o.tp));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::vector<Check> run_mesh_checks(const TrainingSmokeTest& smoke_test, const comm::Group& group,
                                   const comm::Mesh::Connect& connect) {
  const TrainOptions one_rank = options_of(smoke_test);
  const OneRank expected = run_one_rank(one_rank);
  std::vector<Check> checks;
  for (const TrainOptions& options :
       all_meshes(one_rank, group.size(), shrink(smoke_test.config).num_hidden_layers)) {
    const comm::Mesh mesh = train::connect_mesh(
        options, group.rank(), group.size(), [&](const std::string& name, const std::vector<int>& ranks) {
          return connect(fmt::format("doctor-{}-{}", checks.size(), name), ranks);
        });
    const Check passed{
        "replicas and stages", name_of(options), true,
        fmt::format("{} steps of a small model in fp64 have loss, norm, weights and moments of "
                    "one rank",
                    kStepsOnMesh)};
    checks.push_back(verdict_of_all_ranks(passed, run_on(mesh, options, expected), group));
    if (!checks.back().passed) break;  // later runs may fail in other ways
  }
  return checks;
}

}  // namespace shardwise::doctor

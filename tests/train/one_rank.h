// The steps of one rank, in fp64, against which tests compare those of any mesh.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "shardwise/train/trainer.h"
#include "tests/train/runs.h"

namespace shardwise::testing {

inline constexpr double kExact = 1e-10;  // relative, of fp64 sums in another order

/// What a rank has of one parameter after a run.
struct Trained {
  at::Tensor value, exp_avg, exp_avg_sq;
};

/// The steps of one rank and what it has after them, by parameter.
struct Reference {
  std::vector<train::StepRecord> records;
  std::map<std::string, Trained> trained;
};

inline std::map<std::string, Trained> trained_by(const train::Trainer& trainer) {
  std::map<std::string, Trained> all;
  for (const train::ParameterState& state : trainer.optimizer().state())
    all[state.parameter->name] = {state.parameter->value.detach(), state.exp_avg, state.exp_avg_sq};
  return all;
}

inline Reference reference_of(const train::TrainOptions& options) {
  const train::Job job(options);
  Reference reference;
  on_run_ranks(options, [&](const comm::Mesh& mesh) {
    train::Trainer trainer(job, mesh);
    while (trainer.steps_done() < options.steps) reference.records.push_back(trainer.step());
    for (const auto& [name, of] : trained_by(trainer))
      reference.trained[name] = {of.value.clone(), of.exp_avg.clone(), of.exp_avg_sq.clone()};
  });
  return reference;
}

/// Returns the shard of a tensor-parallel rank.
inline at::Tensor shard_of(const at::Tensor& full, const parallel::Parameter& parameter, int rank) {
  if (parameter.rule.is_replicated()) return full;
  std::vector<at::Tensor> pieces;
  for (const base::ShardRule::Piece& piece : parameter.rule.pieces(rank))
    pieces.push_back(full.narrow(parameter.rule.dim, piece.global_begin, piece.size));
  return at::cat(pieces, parameter.rule.dim);
}

/// Returns the largest difference between rows of a shard, `local`, and those of the full tensor's shard,
/// relative to the largest element.
inline double difference(const at::Tensor& local, const at::Tensor& shard, const base::Range& rows) {
  if (local.numel() == 0 && rows.size() * shard.numel() == 0) return 0;
  const double scale = std::max(shard.abs().max().item<double>(), 1e-30);
  return (local - shard.narrow(0, rows.begin, rows.size())).abs().max().item<double>() / scale;
}

inline void expect_reference(const train::Trainer& trainer, const Reference& reference, int tp_rank) {
  for (const train::ParameterState& state : trainer.optimizer().state()) {
    const parallel::Parameter& parameter = *state.parameter;
    const Trained& full = reference.trained.at(parameter.name);
    const auto expect_near = [&](const at::Tensor& local, const at::Tensor& of_one_rank,
                                 const base::Range& rows) {
      EXPECT_LT(difference(local, shard_of(of_one_rank, parameter, tp_rank), rows), kExact) << parameter.name;
    };
    const base::Range kept = parameter.kept_rows();
    expect_near(parameter.value_rows(kept), full.value, kept);
    expect_near(state.exp_avg, full.exp_avg, state.rows);
    expect_near(state.exp_avg_sq, full.exp_avg_sq, state.rows);
  }
}

/// Runs `options` and compares every step, and in the end every weight and state.
inline void expect_steps_of(
    const Reference& reference, const train::TrainOptions& options,
    const MakeGroup& make_group = [](const comm::Group& group) { return group; }) {
  const train::Job job(options);
  std::vector<std::set<std::string>> compared(static_cast<size_t>(options.ranks()));
  on_run_ranks(
      options,
      [&](const comm::Mesh& mesh) {
        train::Trainer trainer(job, mesh);
        for (const train::StepRecord& expected : reference.records) {
          const train::StepRecord record = trainer.step();
          EXPECT_NEAR(record.loss, expected.loss, kExact * expected.loss);
          EXPECT_NEAR(record.grad_norm, expected.grad_norm, kExact * expected.grad_norm);
          EXPECT_EQ(record.tokens, expected.tokens);
          EXPECT_EQ(std::ssize(record.usage), options.ranks());
        }
        expect_reference(trainer, reference, mesh.coordinate("tp"));
        for (const auto& [name, of] : trained_by(trainer))
          compared[static_cast<size_t>(mesh.rank())].insert(name);
      },
      make_group);
  std::set<std::string> all;
  for (const std::set<std::string>& names : compared) all.insert(names.begin(), names.end());
  EXPECT_EQ(all.size(), reference.trained.size()) << "parameters that no rank trains";
}

}  // namespace shardwise::testing

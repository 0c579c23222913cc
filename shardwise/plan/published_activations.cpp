// Memory of GPT blocks as Korthikanti et al. (arXiv 2205.05198) count it, out of the tensors of our blocks.
//
// Theirs saves more: the masks of two dropouts, a byte each, and attention that writes its scores, with a
// mask, in 5 bytes a score. Neither counts norms' statistics and log Σ exp.
#include <fmt/format.h>

#include <algorithm>

#include "shardwise/plan/memory.h"
#include "shardwise/plan/published.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::plan {
namespace {

/// How activations are kept. The paper's selective recomputation repeats attention's scores.
struct Mode {
  const char* name;
  Parallelism parallelism;
  bool keeps_scores;
  Recompute recompute;
};
constexpr Mode kTp{"TP", Parallelism::tp, true, Recompute::none},
    kTpSp{"TP+SP", Parallelism::tp_sp, true, Recompute::none},
    kTpSelective{"TP, selective", Parallelism::tp, false, Recompute::none},
    kTpSpSelective{"TP+SP, selective", Parallelism::tp_sp, false, Recompute::none},
    kFull{"full", Parallelism::tp, false, Recompute::full};

bool is_statistic(SavedTensor tensor) {
  using enum SavedTensor;
  return std::ranges::count(std::vector{norm1_rstd, norm1_mean, norm2_rstd, norm2_mean, attention_lse},
                            tensor) > 0;
}

Workload workload_of(const PublishedGpt& model, const Mode& mode) {
  Workload workload;
  workload.config = config_of(model);
  workload.tp = static_cast<int>(model.tp);
  workload.parallelism = mode.parallelism;
  workload.sequence_length = 2048;
  workload.batch_size = model.micro_batch_size;
  workload.element_bytes = 2;
  workload.column_input_storage = ColumnInputStorage::shard;
  workload.recompute = mode.recompute;
  return workload;
}

/// Returns the bytes that a block of theirs saves.
double block_bytes(const PublishedGpt& model, const Mode& mode) {
  const Workload workload = workload_of(model, mode);
  const RankShard shard = rank_shard(workload, /*rank=*/0);
  int64_t bytes = 0;
  for (const SavedAllocation& saved : saved_by_block(workload, /*rank=*/0, /*layer=*/0))
    bytes += is_statistic(saved.tensor) ? 0 : saved.bytes;
  if (mode.recompute == Recompute::none) bytes += 2 * shard.residual_rows * model.hidden_size;
  if (mode.keeps_scores) bytes += 5 * shard.heads * shard.rows * workload.sequence_length;
  return static_cast<double>(bytes);
}

/// Returns the GiB that the first stage saves of all micro-batches in flight.
double first_stage(const PublishedGpt& model, const Mode& mode) {
  const Degrees degrees{.pp = model.pp, .chunks = model.chunks};
  const double blocks = static_cast<double>(model.layers) / static_cast<double>(model.pp);
  const int64_t micro_batches = model.batch_size / model.micro_batch_size;
  return block_bytes(model, mode) * blocks * micro_batches_in_flight(degrees, /*stage=*/0, micro_batches) /
         double(1 << 30);
}

/// Returns the GiB of weights, gradients and optimizer states of the first stage's blocks.
double states(const PublishedGpt& model) {
  Workload workload = workload_of(model, kTp);
  workload.config.num_hidden_layers = 3;
  workload.stage = base::Range{1, 2};
  return static_cast<double>(total(model_states(workload, /*rank=*/0))) * static_cast<double>(model.layers) /
         static_cast<double>(model.pp) / double(1 << 30);
}

/// Returns the GiB that the first stage's outputs would take if they were kept while their micro-batches are
/// in flight, without interleaving. Backward does not read them.
double first_outputs(const PublishedGpt& model) {
  const Workload workload = workload_of(model, kTp);
  const int64_t micro_batches = model.batch_size / model.micro_batch_size;
  const auto output = static_cast<double>(rank_shard(workload, /*rank=*/0).residual_rows * model.hidden_size *
                                          workload.element_bytes);
  return output * micro_batches_in_flight({.pp = model.pp}, /*stage=*/0, micro_batches) / double(1 << 30);
}

/// The paper's figures of a model, in the order of its tables: figure 1 and the formulas of table 2 in GiB;
/// figure 7 in percent of TP, read off.
struct Published {
  double states, tp, tp_sp_selective, tp_sp, tp_selective, full;
  double percent_tp_sp, percent_tp_selective, percent_both, percent_full;
};
constexpr Published kPublished[] = {
    {45.5625, 59.25, 9.5625, 39.5625, 29.25, 4.5, 66.84, 49.42, 16.18, 7.64},
    {45.5625, 66.84375, 12.3515625, 41.4140625, 37.78125, 5.8125, 62.04, 56.53, 18.49, 8.71},
    {31.640625, 114.0234375, 23.076171875, 66.513671875, 70.5859375, 10.859375, 58.31, 62.04, 20.27, 9.42},
    {32.958984375, 131.25, 26.5625, 76.5625, 81.25, 12.5, 58.31, 62.04, 20.27, 9.42}};

void add_model(std::vector<PublishedFigure>& figures, const PublishedGpt& model, const Published& published) {
  const auto add = [&](const char* group, const std::string& name, const char* table, double value,
                       double planned, double lowest, double highest) {
    figures.push_back({group, "GPT " + model.name + ", " + name, std::string("arXiv 2205.05198, ") + table,
                       value, planned, lowest, highest});
  };
  // The paper's 12h²/t leaves out biases and norms: (7/8 + 6)h at t = 8, where norms and row biases are
  // whole.
  add("GiB of a first stage", "states", "figure 1", published.states, states(model), 0,
      4.6 / static_cast<double>(model.hidden_size));
  const std::pair<Mode, double> saved[] = {{kTp, published.tp},
                                           {kTpSpSelective, published.tp_sp_selective},
                                           {kTpSp, published.tp_sp},
                                           {kTpSelective, published.tp_selective},
                                           {kFull, published.full}};
  for (const auto& [mode, value] : saved)
    add("GiB of a first stage", mode.name, "table 2", value, first_stage(model, mode), -1e-12, 1e-12);
  const std::pair<Mode, double> percents[] = {{kTpSp, published.percent_tp_sp},
                                              {kTpSelective, published.percent_tp_selective},
                                              {kTpSpSelective, published.percent_both},
                                              {kFull, published.percent_full}};
  for (const auto& [mode, value] : percents)
    add("percent of TP's activations", mode.name, "figure 7, read off", value,
        100 * block_bytes(model, mode) / block_bytes(model, kTp), -0.2 / value, 0.2 / value);
}

}  // namespace

std::vector<PublishedFigure> published_activations() {
  std::vector<PublishedFigure> figures;
  const std::vector<PublishedGpt> models = published_gpt_models();
  for (size_t i = 0; i < models.size(); ++i) add_model(figures, models[i], kPublished[i]);
  // Of GPT-3 and MT-NLG, at the printed digits.
  for (const auto& [model, percent] : {std::pair{models[1], 70.0}, {models[2], 65.0}}) {
    const double kept = block_bytes(model, kTpSpSelective) / block_bytes(model, kTpSp);
    figures.push_back({"percent that selective saves", "GPT " + model.name, "arXiv 2205.05198, section 5",
                       percent, 100 * (1 - kept), -0.5 / percent, 0.5 / percent});
  }
  figures.push_back({"GiB of a first stage's outputs", "GPT " + models[2].name,
                     "arXiv 2205.05198, appendix B", 2.73, first_outputs(models[2]), -0.005 / 2.73,
                     0.005 / 2.73});
  return figures;
}

}  // namespace shardwise::plan

#include "shardwise/plan/published.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/plan/collective_time.h"
#include "shardwise/plan/inference_plan.h"
#include "shardwise/plan/operations.h"
#include "shardwise/plan/training_plan.h"

namespace shardwise::plan {
namespace {

using Figures = std::vector<PublishedFigure>;

/// The GPT of a size, by the shapes of Narayanan et al.: heads of 128, and the MLP four times as wide.
config::Config gpt(int64_t hidden_size, int64_t layers, int64_t heads) {
  config::Config c = config::preset("gpt2");
  c.hidden_size = hidden_size;
  c.intermediate_size = 4 * hidden_size;
  c.num_hidden_layers = layers;
  c.num_attention_heads = c.num_key_value_heads = heads;
  c.head_dim = hidden_size / heads;
  c.vocab_size = 51200;
  c.max_position_embeddings = 2048;
  return c;
}

void add_parameters(Figures& figures) {
  const std::pair<const char*, int64_t> presets[] = {
      {"llama-2-7b", 6'738'415'616},       {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.1-8b", 8'030'261'248},     {"llama-3.1-70b", 70'553'706'496},
      {"llama-3.1-405b", 405'853'388'800}, {"mistral-7b", 7'241'732'096},
      {"qwen3-32b", 32'762'123'264},       {"gpt2", 124'439'808}};
  figures.push_back({"parameters", "gpt3-175b", "arXiv 2005.14165, table 2.1", 175.0e9,
                     static_cast<double>(config::parameter_count(config::preset("gpt3-175b"))), -0.003,
                     0.003});
  for (const auto& [name, count] : presets)
    figures.push_back({"parameters", name, "the model's card or file", static_cast<double>(count),
                       static_cast<double>(config::parameter_count(config::preset(name))), 0, 0});
  const std::tuple<const char*, int64_t, int64_t> mixtures[] = {
      {"mixtral-8x7b", 46'702'792'704, 12'879'925'248}, {"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520}};
  for (const auto& [name, all, active] : mixtures) {
    const config::Config config = config::preset_to_plan(name);
    figures.push_back({"parameters", name, "the model's file", static_cast<double>(all),
                       static_cast<double>(config::parameter_count(config)), 0, 0});
    figures.push_back({"parameters of a token", name, "the model's file", static_cast<double>(active),
                       static_cast<double>(config::active_parameter_count(config)), 0, 0});
  }
  figures.push_back({"parameters", "deepseek-v3", "the model's file, without what predicts further tokens",
                     671'026'419'200.0,
                     static_cast<double>(config::parameter_count(config::preset_to_plan("deepseek-v3"))), 0,
                     0});
  struct Row {
    int64_t layers, hidden_size;
    double billions;
  };
  constexpr Row kRows[] = {{24, 2304, 1.7},     {30, 3072, 3.6},     {36, 4096, 7.5},    {40, 6144, 18.4},
                           {48, 8192, 39.1},    {60, 10240, 76.1},   {80, 12288, 145.6}, {96, 16384, 310.1},
                           {105, 20480, 529.6}, {128, 25600, 1008.0}};
  for (const auto& [layers, hidden_size, billions] : kRows) {
    const double planned =
        static_cast<double>(config::parameter_count(gpt(hidden_size, layers, hidden_size / 128)));
    figures.push_back({"parameters", fmt::format("GPT {} x {}", layers, hidden_size),
                       "arXiv 2104.04473, table 1", billions * 1e9, planned, -0.06 / billions,
                       0.06 / billions});
  }
}

Workload whole(const config::Config& config, int64_t sequence_length, int64_t batch_size) {
  Workload workload;
  workload.config = config;
  workload.sequence_length = sequence_length;
  workload.batch_size = batch_size;
  workload.element_bytes = 2;
  return workload;
}

double model_flop(const Workload& workload, CountedKeys keys) {
  return flop_of(micro_batch_operations(workload, /*rank=*/0, keys)).model;
}

/// Keys and values of a token in bf16.
void add_caches(Figures& figures) {
  const std::tuple<const char*, double, const char*> presets[] = {
      {"llama-2-7b", 524'288, "2·32 layers·32 heads·128·2 bytes, Llama 2's card"},
      {"llama-3.1-8b", 131'072, "2·32 layers·8 heads·128·2 bytes, Llama 3.1's card"},
      {"llama-3.1-70b", 327'680, "2·80 layers·8 heads·128·2 bytes, Llama 3.1's card"},
      {"llama-3.1-405b", 516'096, "2·126 layers·8 heads·128·2 bytes, Llama 3.1's card"},
      {"gpt3-175b", 4'718'592, "2·96 layers·96 heads·128·2 bytes, arXiv 2005.14165, table 2.1"}};
  for (const auto& [name, bytes, source] : presets) {
    const InferenceTask task{.config = config::preset(name), .prompt_tokens = 1023, .new_tokens = 1};
    const InferencePlan plan = evaluate(task, {}, built_in_machine("h100"));
    figures.push_back({"bytes of a cached token", name, source, bytes,
                       static_cast<double>(plan.memory.cache) / 1024, 0, 0});
  }
}

void add_flop(Figures& figures) {
  for (const PublishedGpt& model : published_gpt_models()) {
    const double planned = model_flop(whole(config_of(model), 2048, model.batch_size), CountedKeys::all);
    figures.push_back({"FLOP of a step", "GPT " + model.name, "arXiv 2104.04473, formula of the appendix",
                       model.flop, planned, -5e-6, 5e-6});
  }
  // TFLOP/s of a GPU at its tokens per second; half the keys are counted, and the embedding is not.
  const std::tuple<const char*, double, double> rows[] = {
      {"llama-3.1-8b", 14451, 744}, {"llama-3.1-70b", 1602, 719}, {"llama-3.1-405b", 292, 737}};
  for (const auto& [name, tokens_per_second, teraflops] : rows) {
    const double of_token = model_flop(whole(config::preset(name), 8192, 1), CountedKeys::visible) / 8192;
    figures.push_back({"TFLOP/s at tokens/s", name, "Megatron-Bridge, performance summary, H100", teraflops,
                       of_token * tokens_per_second / 1e12, -0.0011, 0.0011});
  }
}

/// Days of a training run whose blocks are computed again in backward, at the FLOP a second of a device.
void add_days(Figures& figures) {
  struct Row {
    const char* name;
    int64_t hidden_size, layers, heads;
    double tokens, devices, flop_per_second, days;
  };
  // The paper's days are of 8 FLOP a parameter and token, without attention's scores and the head.
  constexpr Row kRows[] = {{"GPT 175B, 300e9 tokens", 12288, 96, 96, 300e9, 1024, 140e12, 34},
                           {"GPT 1T, 450e9 tokens", 25600, 128, 160, 450e9, 3072, 163e12, 84}};
  for (const auto& [name, hidden_size, layers, heads, tokens, devices, flop_per_second, days] : kRows) {
    Workload workload = whole(gpt(hidden_size, layers, heads), 2048, 1);
    workload.recompute = Recompute::full;
    double flop = 0;
    for (const Operation& one : micro_batch_operations(workload, /*rank=*/0, CountedKeys::all))
      flop += one.forward.flop + one.input_gradient.flop + one.weight_gradient.flop +
              (one.recomputed.flop > 0 ? one.forward.flop : 0);
    const double planned = flop / 2048 * tokens / (devices * flop_per_second) / 86400;
    figures.push_back(
        {"days of training", name, "arXiv 2104.04473, section 5.1", days, planned, -0.02, 0.03});
  }
}

void add_all_reduces(Figures& figures) {
  struct Row {
    int64_t mebibytes;
    double microseconds[3];  // of 2, 4 and 8 GPUs
  };
  constexpr Row kA100[] = {
      {1, {44.2, 51.4, 92.8}},     {2, {53.4, 55.7, 93.2}},         {4, {61.2, 77.3, 95.8}},
      {8, {86.9, 116.8, 134.3}},   {16, {131.9, 179.6, 232.4}},     {32, {230.0, 284.2, 358.1}},
      {64, {404.7, 543.8, 579.9}}, {256, {1455.8, 1929.0, 2162.3}}, {1024, {5442.8, 7259.4, 8193.0}}};
  const Machine machine = built_in_machine("a100");
  for (const Row& row : kA100) {
    for (int i = 0; i < 3; ++i) {
      const int64_t ranks = 2 << i;
      const double sent = 2.0 * static_cast<double>(row.mebibytes << 20) * static_cast<double>(ranks - 1) /
                          static_cast<double>(ranks);
      const double planned = CollectiveTime(machine, {.ranks = ranks}).all_reduce(sent) * 1e6;
      figures.push_back({"us of an all_reduce", fmt::format("{} MiB on {} A100", row.mebibytes, ranks),
                         "vTrain, trace/a100", row.microseconds[i], planned, -0.17, 0.17});
    }
  }
}

// No constant of a machine is fitted to these, and a plan is faster: the paper's attention writes the scores
// to memory and ours does not, which counts most in the smallest model. Its collectives did not overlap.
void add_steps(Figures& figures) {
  for (const PublishedGpt& model : published_gpt_models()) {
    TrainingTask task{config_of(model), model.tp * model.pp, /*sequence_length=*/2048, model.batch_size};
    task.overlaps_collectives = false;
    TrainingPlanner planner(task, built_in_machine("a100"));
    for (const bool is_full : {false, true}) {
      const Degrees degrees{.tp = model.tp,
                            .pp = model.pp,
                            .micro_batch_size = model.micro_batch_size,
                            .chunks = model.chunks,
                            .recompute = is_full ? Recompute::full : Recompute::selective};
      figures.push_back({"seconds of a step",
                         fmt::format("GPT {}, recompute {}", model.name, is_full ? "full" : "selective"),
                         "arXiv 2205.05198, table 5", is_full ? model.seconds_recomputed : model.seconds,
                         planner.evaluate(degrees).time.total(), -0.25, 0});
    }
  }
}

}  // namespace

std::vector<PublishedGpt> published_gpt_models() {
  return {{"22B", 6144, 48, 64, 8, 1, 4, 4, 1, 1.14356e15, 1.10, 1.42},
          {"175B", 12288, 96, 96, 8, 8, 64, 1, 3, 1.41092e17, 13.75, 18.13},
          {"530B", 20480, 105, 128, 8, 35, 280, 1, 3, 1.85223e18, 37.83, 49.05},
          {"1T", 25600, 128, 160, 8, 64, 512, 1, 1, 6.42588e18, 71.49, 94.42}};
}

config::Config config_of(const PublishedGpt& model) {
  return gpt(model.hidden_size, model.layers, model.heads);
}

std::vector<PublishedFigure> published_figures() {
  Figures figures;
  add_parameters(figures);
  add_caches(figures);
  add_flop(figures);
  add_days(figures);
  add_all_reduces(figures);
  add_steps(figures);
  for (const Figures& more : {published_activations(), published_estimates()})
    figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

}  // namespace shardwise::plan

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>

#include <filesystem>

#include "shardwise/checkpoint/checkpoint.h"
#include "shardwise/checkpoint/contents.h"
#include "shardwise/checkpoint/panel_index.h"
#include "shardwise/config/config.h"
#include "shardwise/quant/panels.h"
#include "shardwise/quant/product.h"
#include "tests/fuzz/target.h"

namespace shardwise::fuzz {
namespace {

using checkpoint::StateTensor;

void hold_finite(const at::Tensor& x, const std::string& what) {
  hold(at::isfinite(x).all().item<bool>(), what + " are finite");
}

std::filesystem::path directory_of(const std::string& path) {
  return std::filesystem::path(path).parent_path();
}

/// Loads a quantized model and dequantizes its weights.
void load_packed(const std::string& path) {
  const std::filesystem::path directory = directory_of(path);
  checkpoint::check(directory, /*needs_state=*/false);
  const model::DecoderWeights weights(config::load_config(directory), comm::Group(), at::kFloat);
  checkpoint::load_weights(directory, weights);
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (!used.parameter->panels) {
      hold_finite(used.parameter->value.detach(), "unquantized weights");
      continue;
    }
    const quant::Panels& panels = *used.parameter->panels;
    at::Tensor w = at::empty({panels.rows, panels.width()}, at::kFloat);
    quant::dequantize_out(w, panels, {0, panels.rows});
    hold_finite(w, "dequantized weights");
  }
}

/// Maps the panels of a model, and reads them as products do.
void map_panels(const std::string& path) {
  const std::filesystem::path directory = directory_of(path);
  checkpoint::check_panel_files(directory);
  const model::DecoderWeights weights(config::load_config(directory), comm::Group(), at::kFloat,
                                      model::WeightUse::inference);
  checkpoint::load_weights(directory, weights);
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    if (!used.parameter->panels) continue;
    const quant::Panels& panels = *used.parameter->panels;
    at::Tensor w = at::empty({panels.rows, panels.width()}, at::kFloat),
               y = at::empty({2, panels.rows}, at::kFloat);
    quant::dequantize_out(w, panels, {0, panels.rows});
    quant::product_out(y, at::ones({2, panels.width()}, at::kFloat), panels);
  }
}

/// Loads the optimizer's state of a model whose weights are in the same directory.
void load_state(const std::string& path) {
  const std::filesystem::path directory = directory_of(path);
  checkpoint::check(directory, /*needs_state=*/true);
  const model::DecoderWeights weights(config::load_config(directory), comm::Group(), at::kFloat);
  checkpoint::TrainState state;
  for (const nn::UsedParameter& used : weights.used_parameters()) {
    for (const char* suffix : {checkpoint::kExpAvg, checkpoint::kExpAvgSq}) {
      const auto shape = used.parameter->value.sizes();
      state.tensors.push_back(StateTensor{used.parameter, suffix, at::empty(shape, at::kFloat)});
    }
  }
  checkpoint::load_state(directory, state, weights);
  for (const StateTensor& tensor : state.tensors) hold_finite(tensor.local, "the optimizer's tensors");
  hold(state.step >= 0 && state.sequences >= 0 && state.seq_len >= 0, "the progress is not negative");
}

}  // namespace

std::vector<Target> weight_targets() {
  return {{"gptq", checkpoint::kWeightsFile, &Mutator::safetensors, load_packed},
          {"awq", checkpoint::kWeightsFile, &Mutator::safetensors, load_packed},
          {"panels", checkpoint::panel_file_name(0, 1), &Mutator::safetensors, map_panels},
          {"panel_index", checkpoint::kPanelIndex, &Mutator::json,
           [](const std::string& path) { checkpoint::check_panel_files(directory_of(path)); }},
          {"optimizer", checkpoint::kStateFile, &Mutator::safetensors, load_state}};
}

}  // namespace shardwise::fuzz

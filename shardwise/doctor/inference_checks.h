// Checks of generation, which training does not cover: packed weights, the KV cache, several texts at once.
#pragma once
#include <filesystem>
#include <vector>

#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// The model that generates, and how.
struct InferenceTest {
  std::filesystem::path checkpoint;  // unquantized weights of a small model
  std::filesystem::path scratch;     // an empty path in a directory of all ranks, for panel files
  at::ScalarType dtype;              // fp32 or bf16
};

/// Generates texts with the weights as they are and quantized on load to int8 and int4, in fp64 and in the
/// test's dtype, and from panel files. The tokens must be the most likely ones of the published formulas, and
/// their log probabilities those of the formulas, within docs/adr/0015's bounds. From panel files they must
/// be bit-equal. Collective. Returns the checks "generation" and "panel files", complete on rank 0. Cost: the
/// formulas' on rank 0. Errors: those of checkpoint::load_weights and checkpoint::write_panel_files.
std::vector<Check> run_inference_checks(const InferenceTest& test, const comm::Group& group);

}  // namespace shardwise::doctor

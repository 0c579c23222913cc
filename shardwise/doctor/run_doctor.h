// Runs a model at TP=1 and at TP=N, forward and backward, and reports where the results first differ.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "shardwise/comm/mesh.h"
#include "shardwise/doctor/report.h"

namespace shardwise::doctor {

/// The model that the doctor runs.
struct Target {
  config::Config config;
  at::ScalarType dtype;  // fp32 or bf16
  /// Loads the weights, equal at every tp size. Collective over the weights' group.
  std::function<void(model::DecoderWeights&)> load;
};

/// Draws biases from normal(0, 0.3) and norm weights from normal(1, 0.3), equal at every tp size. Their
/// default values, 0 and 1, would hide errors such as a bias added twice.
void randomize_1d_parameters_(model::DecoderWeights& weights, uint64_t seed);

struct RunOptions {
  Tokens tokens;                         // s ≥ 4
  uint64_t seed = 0;                     // of masks, random directions, and the training smoke test
  std::filesystem::path directory = {};  // empty and shared by all ranks; the smoke test writes a few MB
  comm::Mesh::Connect connect = {};      // connects some of the group's ranks on the CPU
  /// The group's ranks on another device than the CPU, and its name; runs in the target's dtype are also done
  /// there.
  std::optional<comm::Group> device = {};
  std::string device_name = {};
  /// Called on rank 0 before each part of the run; may be empty.
  std::function<void(const std::string& part)> on_part = {};
};

/// Runs a plain and a training test case in fp64 and in the target's dtype, under TP and TP+SP, in the latter
/// also on the device; in fp64 also with saved and re-gathered inputs and with full recomputation. Runs the
/// checks. If all of these pass, runs the training smoke test and the mesh checks. Collective; rank 0 also
/// runs the unsharded model while the others wait. Memory per parameter: 24/N bytes on every rank, 32 more on
/// rank 0; and the largest tensor twice in fp64. Errors: c10::ValueError for a group of one; base::FileError.
Report run_doctor(const Target& target, const RunOptions& options, const comm::Group& group);

}  // namespace shardwise::doctor

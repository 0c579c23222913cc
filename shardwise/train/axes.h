// The axes of a training run's mesh.
#pragma once
#include <array>

namespace shardwise::train {

inline constexpr const char* kPipelineAxis = "pp";
inline constexpr const char* kDataAxis = "dp";
inline constexpr const char* kTensorAxis = "tp";

/// All of them, in the order of the mesh.
inline constexpr std::array kAxes{kPipelineAxis, kDataAxis, kTensorAxis};

}  // namespace shardwise::train

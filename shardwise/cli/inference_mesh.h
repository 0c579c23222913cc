// The ranks of generation and evaluation: pipeline stages, each split over tensor-parallel ranks.
#pragma once
#include "shardwise/comm/mesh.h"

namespace shardwise::cli {

/// The names of the axes.
inline constexpr const char* kStageAxis = "pp";
inline constexpr const char* kTensorAxis = "tp";

/// Connects `pp` stages of `tp` neighboring ranks. Errors: those of comm::Mesh.
inline comm::Mesh inference_mesh(int64_t pp, int64_t tp, int rank, int world_size,
                                 const comm::Mesh::Connect& connect) {
  const comm::Mesh::Axes axes{{kStageAxis, static_cast<int>(pp)}, {kTensorAxis, static_cast<int>(tp)}};
  return comm::Mesh(axes, rank, world_size, connect, {{kStageAxis, kTensorAxis}});
}

/// Returns the group of all ranks of the mesh.
inline const comm::Group& world_of(const comm::Mesh& mesh) {
  return mesh.group(comm::Mesh::Names{kStageAxis, kTensorAxis});
}

}  // namespace shardwise::cli

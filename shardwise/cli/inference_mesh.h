// The ranks of generation and evaluation: pipeline stages, each split over tensor-parallel ranks.
#pragma once
#include "shardwise/cli/model_source.h"
#include "shardwise/comm/mesh.h"
#include "shardwise/config/stages.h"
#include "shardwise/train/axes.h"

namespace shardwise::cli {

/// Connects `pp` stages of `tp` neighboring ranks: the axes kPipelineAxis and kTensorAxis of train/axes.h.
/// Errors: those of comm::Mesh.
comm::Mesh inference_mesh(int64_t pp, int64_t tp, int rank, int world_size,
                          const comm::Mesh::Connect& connect);

/// Returns the group of all ranks of the mesh.
const comm::Group& world_of(const comm::Mesh& mesh);

/// Returns the weights of this rank's stage, not loaded.
model::DecoderWeights weights_of_stage(const ModelSource& model, const config::Stages& stages,
                                       const comm::Mesh& mesh);

}  // namespace shardwise::cli

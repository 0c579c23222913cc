#include "shardwise/cli/inference_mesh.h"

namespace shardwise::cli {

using train::kPipelineAxis, train::kTensorAxis;

comm::Mesh inference_mesh(int64_t pp, int64_t tp, int rank, int world_size,
                          const comm::Mesh::Connect& connect) {
  const comm::Mesh::Axes axes{{kPipelineAxis, static_cast<int>(pp)}, {kTensorAxis, static_cast<int>(tp)}};
  return comm::Mesh(axes, rank, world_size, connect, {{kPipelineAxis, kTensorAxis}});
}

const comm::Group& world_of(const comm::Mesh& mesh) {
  return mesh.group(comm::Mesh::Names{kPipelineAxis, kTensorAxis});
}

model::DecoderWeights weights_of_stage(const ModelSource& model, const config::Stages& stages,
                                       const comm::Mesh& mesh) {
  const config::Config& config = model.config();
  return model::DecoderWeights(
      config, mesh.group(kTensorAxis), model.dtype(), model::WeightUse::inference,
      config::layers_of(stages, config.num_hidden_layers, mesh.coordinate(kPipelineAxis)));
}

}  // namespace shardwise::cli

// Checks of replicas and pipeline stages: the steps of a small model on every mesh of the ranks, against
// those of one rank.
#pragma once
#include <vector>

#include "shardwise/comm/mesh.h"
#include "shardwise/doctor/report.h"
#include "shardwise/doctor/small_model.h"

namespace shardwise::doctor {

/// Trains the small model in fp64, with dropout, clipping and three micro-batches, on every mesh pp × dp × tp
/// of the group's ranks with more than one axis or other than tp, with every splitting of the replicas'
/// states. Loss and norm of each step, and in the end every weight and moment of each rank must be those of
/// one rank, to 1e-10; in the groups that `connect` makes, ranks must have the places that the mesh says.
/// Collective; the inputs are written. Returns a check for each run, the last one the first that failed,
/// complete on rank 0. Cost: a few MB of memory, the model on every rank.
std::vector<Check> run_mesh_checks(const TrainingSmokeTest& smoke_test, const comm::Group& group,
                                   const comm::Mesh::Connect& connect);

}  // namespace shardwise::doctor

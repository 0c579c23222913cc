// Memory of a rank in training, tensor by tensor: what each layer saves for backward, and the model states.
//
// Sizes are logical bytes, before an allocator rounds. Tests compare them with what autograd saves, at 0 %.
// plan/peak.h has the step's peak, which includes short-lived tensors.
#pragma once
#include <string_view>
#include <vector>

#include "shardwise/plan/saved_tensor.h"
#include "shardwise/plan/workload.h"

namespace shardwise::plan {

/// A tensor of a rank; the name is for output only.
struct Allocation {
  std::string_view name;             // what it is; a literal
  int64_t bytes;                     // before an allocator rounds
  Pool pool = Pool::private_memory;  // where it is
};
/// The tensors that are live at one point.
using Allocations = std::vector<Allocation>;
/// Returns the bytes of all tensors.
int64_t total(const Allocations& allocations);
/// Returns the bytes of the tensors in `pool`.
int64_t total(const Allocations& allocations, Pool pool);

/// A tensor that may be saved for backward.
struct SavedAllocation {
  SavedTensor tensor;                // which tensor it is
  int64_t bytes;                     // before an allocator rounds
  Pool pool = Pool::private_memory;  // where it is
};
/// The tensors of one rank, in the order of the forward.
using SavedAllocations = std::vector<SavedAllocation>;
/// Returns `saved` with the tensors' names.
Allocations named(const SavedAllocations& saved);
/// Returns the bytes of all tensors in `saved`.
int64_t total(const SavedAllocations& saved);

/// Returns the tensors of a decoder block's forward that a backward may read, in the order of the forward.
/// The block's input is included; its output is the next block's input. bf16 Llama at t = 1:
/// s·b·(8h + 4ad + 4kd + 6f + 4a + 8). Dropout saves nothing: backward draws its masks again.
SavedAllocations made_by_block(const Workload& workload, int rank, int64_t layer);

/// Returns the tensors of made_by_block that the block's backward reads for the required gradients
/// (required_gradients.h).
SavedAllocations read_by_block(const Workload& workload, int rank, int64_t layer);

/// Returns the tensors that a block saves for backward. `workload.recompute` selects them: all of
/// read_by_block; all but the down projection's input; or the input of a block that has a backward.
SavedAllocations saved_by_block(const Workload& workload, int rank, int64_t layer);

/// Returns the tensors that the final norm and the loss save for backward. The embedding saves nothing: the
/// caller owns the ids, and its output is the first block's input.
SavedAllocations saved_by_head(const Workload& workload, int rank);

/// Returns the number of elements of the rank's parameters, including frozen ones.
int64_t local_parameter_count(const Workload& workload, int rank);

/// Bytes of a rank's model states.
struct ModelStates {
  int64_t weights;          // of all parameters
  int64_t main_gradients;   // to which backward adds: of the trained parameters, or of some parts
  int64_t owned_gradients;  // with sharded gradients: sums of the rows that the replica owns; else 0
  int64_t
      tied_weight;  // of `weights`, a tied head's on the last of several stages, which replicas do not share
  int64_t tied_gradient;      // of `main_gradients`, its
  int64_t master_weights;     // 0 unless the weights are narrower than fp32
  int64_t optimizer_moments;  // AdamW's two
};
/// Returns the sum of the states' bytes.
int64_t total(const ModelStates& states);
/// Returns weights, and for trained parameters main gradients, master weights (if weights are narrower than
/// fp32) and AdamW's two moments: 16 bytes per parameter in fp32, 18 in bf16; 4 or 2 if frozen. Of weights
/// that replicas share, replica 0 has all. With sharded gradients, main gradients only of the largest part of
/// the model (LocalParameter::part), and of the first if a head is tied to it. `replica`: from 0 to dp − 1.
ModelStates model_states(const Workload& workload, int rank, int replica = 0);

}  // namespace shardwise::plan

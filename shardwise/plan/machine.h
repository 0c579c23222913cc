// The machine that a plan is made for: nodes of equal devices, each running one rank.
//
// Rates are those of one device, and of one direction of a link: published bandwidths of NVLink count both
// directions and are halved here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/plan/inference_rates.h"
#include "shardwise/plan/rate.h"

namespace shardwise::plan {

/// A published or measured figure.
struct Figure {
  double value;        // in the unit of its member
  std::string source;  // where it was published or how it was measured
};

/// What a device needs to send to another one.
struct Link {
  Figure bytes_per_second;  // one way, of one device
  Figure efficiency;        // the part of it that large collectives reach
  Figure seconds_per_call;  // a collective's time before its first byte
  Figure seconds_per_hop;   // added by every step that waits for the one before
  Figure processor_share;   // the part of a device's arithmetic that a running collective takes
};

/// How ranks pass on the parts of a collective.
enum class Algorithm {
  ring,      // each to the next one: t − 1 steps for each half of an all_reduce
  two_shot,  // each to all others at once: one step for each half
  tree,      // an all_reduce up and down two binary trees (Sanders, Speck and Träff 2009): 2 log₂ t steps
};
/// Returns the algorithm that is called so. Errors: c10::ValueError listing the names.
Algorithm algorithm_of(const std::string& name);
/// Returns its name.
std::string name_of(Algorithm algorithm);

/// The rates of a device's operations on elements of one size.
struct OperationRates {
  Figure flop_per_second;   // of products at best, without sparsity: what utilization refers to
  Rate product;             // y = x·wᵀ of training, in FLOP
  Rate input_gradient;      // dx = dy·w, in FLOP
  Rate weight_gradient;     // dw += dyᵀ·x, in FLOP
  Rate attention;           // in FLOP
  Rate attention_backward;  // in FLOP, without those of the scores that it computes again
  Rate elementwise;         // in bytes read and written
};

/// The times of collectives among that many ranks of one node. Work is the bytes that a rank sends.
struct MeasuredCollectives {
  int64_t ranks;        // t, in the group
  Rate all_reduce;      // whose work is 2(t − 1)/t of the tensor's bytes
  Rate all_gather;      // whose work is (t − 1)/t of the result's bytes
  Rate reduce_scatter;  // whose work is (t − 1)/t of the input's bytes
};

/// Nodes of equal devices.
struct Machine {
  std::string name;                  // as in --machine
  int64_t devices_per_node = 1;      // that the fast link connects
  bool shares_memory = false;        // devices of a node read each other's memory, as ranks of a CPU do
  int64_t wgrad_operand_bytes = 0;   // that products of 16-bit operands copy, as in Workload
  Figure memory_bytes;               // of a device
  Figure reserved_bytes;             // of a device, for contexts, libraries and fragmentation
  Figure memory_bytes_per_second;    // that a device reads
  Figure update_bytes_per_second;    // that the optimizer reads and writes
  Figure seconds_per_operation;      // to start an operation
  OperationRates rates_16_bit;       // on bf16
  OperationRates rates_32_bit;       // on fp32
  Link within_node;                  // between devices of a node
  std::optional<Link> across_nodes;  // between devices of different nodes; if there are any
  std::optional<InferenceRates> inference = {};  // of 16-bit models; takes precedence over rates_16_bit
  std::optional<MeasuredCollectives> collectives = {};  // takes precedence over within_node
  Algorithm algorithm = Algorithm::ring;                // of collectives that were not measured

  /// Returns the rates for elements of `element_bytes`: 2, or more.
  const OperationRates& rates(int64_t element_bytes) const;
  /// Returns the memory that a plan may fill: `cap`, or all but the reserve. Errors: c10::ValueError if it is
  /// not positive.
  int64_t usable_bytes(std::optional<int64_t> cap = {}) const;
};

/// Returns a machine by name. Errors: c10::ValueError listing the names.
Machine built_in_machine(const std::string& name);
/// Returns the names of the built-in machines.
std::vector<std::string> machine_names();

}  // namespace shardwise::plan

// The machine that a plan is made for: nodes of equal devices, each running one rank.
//
// Rates are those of one device, and of one direction of a link: published bandwidths of NVLink count both
// directions and are halved here.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

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
  Figure seconds_per_hop;   // added by every step of a ring
};

/// The part of the peak rate that products of a size reach.
struct Efficiency {
  double flop;      // of the product
  double fraction;  // of the peak rate
};

/// Nodes of equal devices.
struct Machine {
  std::string name;                    // as in --machine
  int64_t devices_per_node = 1;        // that the fast link connects
  Figure memory_bytes;                 // of a device
  Figure reserved_bytes;               // of a device, for contexts, libraries and fragmentation
  Figure flop_per_second_16_bit;       // of bf16 products without sparsity
  Figure flop_per_second_32_bit;       // of fp32 products
  Figure memory_bytes_per_second;      // peak rate of reading
  Figure memory_efficiency;            // the part of it that large operations reach
  Figure seconds_per_operation;        // to start an operation
  std::vector<Efficiency> efficiency;  // of products, by ascending size; interpolated in log(flop)
  std::string efficiency_source;       // of the list
  Link within_node;                    // between devices of a node
  Link across_nodes;                   // between devices of different nodes

  /// Returns the fraction of the peak rate that products of `flop` operations reach.
  double efficiency_of(double flop) const;
  /// Returns the peak rate for elements of `element_bytes`: 2, or more.
  double flop_per_second(int64_t element_bytes) const;
  /// Returns the bytes per second that large operations read and write.
  double reached_bytes_per_second() const;
  /// Returns the memory that a plan may fill.
  int64_t usable_bytes() const;
};

/// Returns a machine by name. Errors: c10::ValueError listing the names.
Machine built_in_machine(const std::string& name);
/// Returns the names of the built-in machines.
std::vector<std::string> machine_names();

}  // namespace shardwise::plan

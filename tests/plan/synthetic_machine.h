// Machines of constant rates, for tests that choose among plans.
#pragma once
#include "shardwise/plan/machine.h"

namespace shardwise::plan {

/// Ranks that compute `flop_per_second` each, in every operation. Each collective takes `seconds_per_call`,
/// and its bytes next to nothing.
inline Machine synthetic_machine(int64_t ranks, double flop_per_second, double seconds_per_call) {
  const char* here = "synthetic";
  const Rate product({{1, flop_per_second}}, here), memory({{1, 1e12}}, here);
  Machine m;
  m.name = here;
  m.devices_per_node = ranks;
  m.shares_memory = true;
  m.wgrad_operand_bytes = 2;
  m.memory_bytes = m.memory_bytes_per_second = m.update_bytes_per_second = {1e12, here};
  m.reserved_bytes = m.seconds_per_operation = {0, here};
  m.rates_16_bit =
      m.rates_32_bit = {{flop_per_second, here}, product, product, product, product, product, memory};
  m.within_node = {{1e15, here}, {1, here}, {seconds_per_call, here}, {0, here}, {0, here}};
  return m;
}

}  // namespace shardwise::plan

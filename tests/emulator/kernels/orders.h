// The orders of threads, blocks and operations in which a kernel's test runs.
#pragma once
#include "tests/support/emulator/emulator.h"

namespace shardwise::kernels::cuda {

using emulator::is_sanitized;

/// Calls check() in each kind of order.
template <class Check>
void in_every_order(const Check& check) {
  using emulator::Order;
  for (const auto& [order, seed] :
       {std::pair{Order::forward, 0u}, {Order::backward, 0u}, {Order::random, 1u}, {Order::random, 2u}}) {
    emulator::set({.order = order, .seed = seed});
    check();
  }
  emulator::set({});
}

}  // namespace shardwise::kernels::cuda

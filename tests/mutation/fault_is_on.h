// The switch of the deliberate faults. tests/mutation/faults.py replaces FAULT in faults/*.diff by it.
#pragma once
#include <string_view>

namespace shardwise {

/// True if $SHARDWISE_FAULT names `fault`.
bool fault_is_on(std::string_view fault);

}  // namespace shardwise

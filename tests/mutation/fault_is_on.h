// The switch of the deliberate faults. tests/mutation/faults.py puts it where faults/*.diff say FAULT.
#pragma once
#include <string_view>

namespace shardwise {

/// True if $SHARDWISE_FAULT names `fault`.
bool fault_is_on(std::string_view fault);

}  // namespace shardwise

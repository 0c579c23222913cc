// The default time that a rank waits for another.
#pragma once
#include <chrono>

namespace shardwise::comm {

inline constexpr std::chrono::milliseconds kTimeout{300'000};

}  // namespace shardwise::comm

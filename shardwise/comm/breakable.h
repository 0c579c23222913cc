// A c10d backend that tells its peers why it was given up; c10d's own `abort` has no words.
#pragma once
#include <string>

namespace shardwise::comm {

class Breakable {
 public:
  virtual ~Breakable() = default;
  /// Breaks the group: every peer's current or next wait fails naming `reason`.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace shardwise::comm

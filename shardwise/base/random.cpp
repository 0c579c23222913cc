#include "shardwise/base/random.h"

#include <c10/util/Exception.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

namespace shardwise::base {

uint64_t random_bits() {
  uint64_t bits = 0;
  TORCH_CHECK(getrandom(&bits, sizeof(bits), 0) == sizeof(bits),
              "getrandom must return random bits; got: ", std::strerror(errno), " [SW0124]");
  return bits;
}

}  // namespace shardwise::base

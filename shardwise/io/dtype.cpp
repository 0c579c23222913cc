#include "shardwise/io/dtype.h"

#include <c10/util/Exception.h>

#include <array>

#include "shardwise/base/json.h"

namespace shardwise::io {
namespace {

struct DtypeEntry {
  const char* name;
  int64_t itemsize;
};

// In the order of the enumerators of Dtype.
constexpr std::array<DtypeEntry, 15> kEntries{{{"F64", 8},
                                               {"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U64", 8},
                                               {"U32", 4},
                                               {"U16", 2},
                                               {"U8", 1},
                                               {"BOOL", 1},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1}}};
static_assert(kEntries.size() == static_cast<size_t>(Dtype::F8_E5M2) + 1);

}  // namespace

int64_t itemsize(Dtype dtype) {
  return kEntries.at(static_cast<size_t>(dtype)).itemsize;
}

const char* dtype_name(Dtype dtype) {
  return kEntries.at(static_cast<size_t>(dtype)).name;
}

Dtype dtype_from_name(const std::string& name, const std::string& where) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (name == kEntries[i].name) return static_cast<Dtype>(i);
  }
  C10_THROW_ERROR(ValueError, where +
                                  ": dtype must be one of F64, F32, F16, BF16, I64 to I8, U64 to U8, BOOL, "
                                  "F8_E4M3, F8_E5M2; got " +
                                  base::shown(name) + " [SW0260]");
}

}  // namespace shardwise::io

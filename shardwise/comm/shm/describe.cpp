#include "shardwise/comm/shm/describe.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <array>

namespace shardwise::comm::shm {
namespace {

std::string dtype_name(int8_t dtype) {
  switch (static_cast<c10::ScalarType>(dtype)) {
    case c10::kDouble:
      return "float64";
    case c10::kFloat:
      return "float32";
    case c10::kBFloat16:
      return "bfloat16";
    case c10::kHalf:
      return "float16";
    case c10::kLong:
      return "int64";
    case c10::kInt:
      return "int32";
    case c10::kByte:
      return "uint8";
    default:
      return c10::toString(static_cast<c10::ScalarType>(dtype));
  }
}

}  // namespace

std::string_view name(Wire op) {
  static constexpr std::array<std::string_view, 9> names = {"broadcast",      "all_gather", "all_reduce",
                                                            "reduce_scatter", "scatter",    "gather",
                                                            "all_to_all",     "barrier",    "expose"};
  return names[static_cast<size_t>(op)];
}

std::string describe(const Descriptor& descriptor) {
  const Wire op = descriptor.op;
  if (op == Wire::barrier) return "barrier";
  const bool reduces = op == Wire::all_reduce || op == Wire::reduce_scatter;
  const bool has_root = op == Wire::broadcast || op == Wire::scatter || op == Wire::gather;
  std::string text = fmt::format("{} {}{} [{}]", name(op),
                                 !reduces                           ? ""
                                 : descriptor.reduce == Reduce::sum ? "sum "
                                                                    : "max ",
                                 dtype_name(descriptor.dtype), descriptor.numel);
  if (has_root) text += fmt::format(" root {}", descriptor.root_or_dim);
  if (!has_root && descriptor.root_or_dim != 0) text += fmt::format(" dim {}", descriptor.root_or_dim);
  if (descriptor.split != 0) text += fmt::format(" split {:08x}", uint32_t(descriptor.split));
  return text;
}

}  // namespace shardwise::comm::shm

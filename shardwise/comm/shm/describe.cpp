#include "shardwise/comm/shm/describe.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

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

std::string describe(const Descriptor& descriptor) {
  const Op op = descriptor.op;
  if (op == Op::barrier) return "barrier";
  const bool reduces = op == Op::all_reduce || op == Op::reduce_scatter;
  const bool has_root = op == Op::broadcast || op == Op::scatter || op == Op::gather;
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

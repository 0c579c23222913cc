#include "shardwise/comm/descriptor.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

namespace shardwise::comm {
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
    case c10::kShort:
      return "int16";
    case c10::kChar:
      return "int8";
    case c10::kByte:
      return "uint8";
    case c10::kBool:
      return "bool";
    default:
      return c10::toString(static_cast<c10::ScalarType>(dtype));
  }
}

}  // namespace

const char* name(Reduce reduce) {
  static constexpr const char* names[kReductions] = {"sum",     "product", "min",    "max",
                                                     "average", "bit_and", "bit_or", "bit_xor"};
  return names[static_cast<int>(reduce)];
}

Descriptor descriptor_of(Op op, const at::Tensor& x, int64_t numel, int64_t root_or_dim) {
  Descriptor descriptor;
  descriptor.op = op;
  descriptor.dtype = static_cast<int8_t>(x.scalar_type());
  descriptor.root_or_dim = static_cast<int32_t>(root_or_dim);
  descriptor.numel = numel;
  return descriptor;
}

Descriptor descriptor_of(Op op, const at::Tensor& x, const std::vector<at::Tensor>& pieces,
                         int64_t root_or_dim) {
  Descriptor descriptor = descriptor_of(op, x, /*numel=*/0, root_or_dim);
  descriptor.split = base::kHashBegin;
  for (const at::Tensor& piece : pieces) {
    descriptor.numel += piece.numel();
    descriptor.split = base::mix(descriptor.split, uint64_t(piece.numel()));
  }
  return descriptor;
}

std::string describe(int8_t dtype, int64_t numel) {
  return fmt::format("{} [{}]", dtype_name(dtype), numel);
}

std::string describe(const Descriptor& descriptor) {
  const Op op = descriptor.op;
  if (op == Op::barrier) return "barrier";
  if (op == Op::all_to_all) return fmt::format("{} {}", name(op), dtype_name(descriptor.dtype));
  if (op == Op::scatter || op == Op::gather)
    return fmt::format("{} {} root {}", name(op), dtype_name(descriptor.dtype), descriptor.root_or_dim);
  const bool reduces = op == Op::all_reduce || op == Op::reduce_scatter;
  const bool has_root = op == Op::broadcast;
  const std::string operation = reduces ? fmt::format("{} ", name(descriptor.reduce)) : "";
  std::string text =
      fmt::format("{} {}{} [{}]", name(op), operation, dtype_name(descriptor.dtype), descriptor.numel);
  if (has_root) text += fmt::format(" root {}", descriptor.root_or_dim);
  if (!has_root && descriptor.root_or_dim != 0) text += fmt::format(" dim {}", descriptor.root_or_dim);
  if (descriptor.split != 0) text += fmt::format(" split {:08x}", uint32_t(descriptor.split));
  return text;
}

}  // namespace shardwise::comm

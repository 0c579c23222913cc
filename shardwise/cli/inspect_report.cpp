#include "shardwise/cli/inspect_report.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/error.h"
#include "shardwise/base/json.h"
#include "shardwise/cli/output.h"
#include "shardwise/cli/table.h"
#include "shardwise/cli/units.h"

namespace shardwise::cli {

using checkpoint::InspectedPanelTensor;
using checkpoint::InspectedTensor;
using checkpoint::Inspection;
using checkpoint::PanelInspection;
using nlohmann::ordered_json;
using Shape = std::vector<int64_t>;

namespace {

// The longest name and the most dims that are shown as they are: more than those of any model in use. The
// table pads every row to its longest cell, so a hostile file could make it arbitrarily large.
constexpr size_t kMaxName = 120, kMaxDims = 8;

std::string name_text(const std::string& name) {
  return name.size() <= kMaxName ? base::printable(name) : base::shown(name);
}

std::string shape_text(const Shape& shape) {
  if (shape.size() > kMaxDims) return base::shown(nlohmann::json(shape));
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Joins the strings and collapses equal neighbors: "[6, 12] x2, [5, 12]".
std::string listed(const std::vector<std::string>& texts) {
  std::string line;
  for (size_t i = 0, next = 0; i < texts.size(); i = next) {
    while (next < texts.size() && texts[next] == texts[i]) ++next;
    line += (line.empty() ? "" : ", ") + texts[i];
    if (next - i > 1) line += fmt::format(" x{}", next - i);
  }
  return line;
}

Row row_of(const InspectedTensor& tensor) {
  Row row{name_text(tensor.name), io::dtype_name(tensor.dtype), shape_text(tensor.shape), tensor.rule};
  if (tensor.rank_shapes.size() < 2) return row;
  std::vector<std::string> shapes;
  for (const Shape& shape : tensor.rank_shapes) shapes.push_back(shape_text(shape));
  row.push_back(listed(shapes));
  return row;
}

/// Returns the sizes of all ranks; of one rank nothing, because they are those of the whole.
std::string per_rank(const std::vector<int64_t>& rank_bytes) {
  if (rank_bytes.size() < 2) return "";
  std::vector<std::string> sizes;
  for (const int64_t bytes : rank_bytes) sizes.push_back(in_megabytes(bytes));
  return "; per rank " + listed(sizes);
}

template <class T>
ordered_json or_null(const std::optional<T>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json tensor_json(const InspectedTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", io::dtype_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"rule", tensor.rule},
          {"rank_shapes", tensor.rank_shapes}};
}

Row row_of(const InspectedPanelTensor& tensor) {
  std::vector<std::string> sizes;
  for (const int64_t bytes : tensor.rank_bytes) sizes.push_back(in_megabytes(bytes));
  return {name_text(tensor.name), tensor.is_packed ? "packed" : io::dtype_name(tensor.dtype), listed(sizes)};
}

/// "packed for 2 ranks, bf16, int4 in groups of 32, head int8".
std::string text_of(const checkpoint::PanelOptions& options) {
  std::string text =
      fmt::format("packed for {} rank{}, {}", options.tp, options.tp == 1 ? "" : "s", options.dtype);
  if (options.quantize) text += ", " + base::shortened(*options.quantize);
  if (options.group_size) text += fmt::format(" in groups of {}", *options.group_size);
  if (options.head) text += ", head " + base::shortened(*options.head);
  return text;
}

ordered_json tensor_json(const InspectedPanelTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", tensor.is_packed ? ordered_json() : ordered_json(io::dtype_name(tensor.dtype))},
          {"packed", tensor.is_packed},
          {"rank_bytes", tensor.rank_bytes}};
}

}  // namespace

std::string to_text(const Inspection& found) {
  std::vector<Row> rows{{"tensor", "dtype", "shape", "sharding"}};
  if (found.rank_bytes.size() > 1) rows[0].push_back(fmt::format("on {} ranks", found.rank_bytes.size()));
  for (const InspectedTensor& tensor : found.tensors) rows.push_back(row_of(tensor));
  std::string text = table(rows) + fmt::format("{}: {} parameters, {}", found.config.model_type,
                                               found.parameters, in_megabytes(found.bytes));
  if (found.config.quantization) text += "; " + found.config.quantization->text();
  return text + per_rank(found.rank_bytes) + "\n";
}

std::string to_json(const Inspection& found) {
  const auto& quantization = found.config.quantization;
  ordered_json json{{"model_type", found.config.model_type},
                    {"quantization", quantization ? ordered_json(quantization->text()) : ordered_json()},
                    {"tp", found.rank_bytes.size()},
                    {"parameters", found.parameters},
                    {"bytes", found.bytes},
                    {"rank_bytes", found.rank_bytes},
                    {"bytes_read", found.bytes_read},
                    {"tensors", ordered_json::array()}};
  for (const InspectedTensor& tensor : found.tensors) json["tensors"].push_back(tensor_json(tensor));
  return json_line(json);
}

std::string to_text(const PanelInspection& found) {
  std::vector<Row> rows{{"parameter", "stored as", "bytes"}};
  for (const InspectedPanelTensor& tensor : found.tensors) rows.push_back(row_of(tensor));
  return table(rows) + fmt::format("{}: {} parameters, {}; {}{}\n", found.config.model_type, found.parameters,
                                   in_megabytes(found.bytes()), text_of(found.options),
                                   per_rank(found.rank_bytes));
}

std::string to_json(const PanelInspection& found) {
  ordered_json json{{"model_type", found.config.model_type},
                    {"tp", found.options.tp},
                    {"dtype", found.options.dtype},
                    {"quantize", or_null(found.options.quantize)},
                    {"group_size", or_null(found.options.group_size)},
                    {"head", or_null(found.options.head)},
                    {"parameters", found.parameters},
                    {"bytes", found.bytes()},
                    {"rank_bytes", found.rank_bytes},
                    {"bytes_read", found.bytes_read},
                    {"tensors", ordered_json::array()}};
  for (const InspectedPanelTensor& tensor : found.tensors) json["tensors"].push_back(tensor_json(tensor));
  return json_line(json);
}

}  // namespace shardwise::cli

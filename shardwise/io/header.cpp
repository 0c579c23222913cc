#include "shardwise/io/header.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "shardwise/base/json.h"

namespace shardwise::io {
namespace {

using base::kMaxJsonBytes, base::shown;
using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr const char* kMetadataKey = "__metadata__";

/// Returns the bytes of a tensor. Errors: c10::ValueError for a negative dim, or if the product of the
/// nonzero dims exceeds 63 bits (other code multiplies subsets of the dims).
int64_t tensor_bytes(const std::vector<int64_t>& shape, Dtype dtype, const std::string& where) {
  int64_t bytes = itemsize(dtype);
  bool is_empty = false;
  for (const int64_t size : shape) {
    TORCH_CHECK_VALUE(size >= 0, where, ": shape must not be negative; got ", size, " [SW0270]");
    is_empty |= size == 0;
    TORCH_CHECK_VALUE(!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes), where,
                      ": shape must fit 63 bits of bytes; got ", shown(shape), " [SW0271]");
  }
  return is_empty ? 0 : bytes;
}

int64_t parse_size(const json& value, const std::string& where) {
  const bool is_size =
      value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
  TORCH_CHECK_VALUE(is_size, where, " must be integers from 0 to 2^63 - 1; got ", shown(value), " [SW0261]");
  return value.get<int64_t>();
}

const json& field(const json& entry, const char* name, bool (json::*is_type)() const noexcept,
                  const std::string& where) {
  const auto found = entry.find(name);
  TORCH_CHECK_VALUE(found != entry.end() && ((*found).*is_type)(), where, ": must have a ", name,
                    " of the type that the format requires; got ", shown(entry), " [SW0259]");
  return *found;
}

/// Parses one tensor's entry. Its begin and end are relative to the end of the header.
TensorInfo parse_tensor(const std::string& name, const json& entry, const std::string& path) {
  const std::string where = path + ": tensor " + shown(name);
  TORCH_CHECK_VALUE(entry.is_object(), where, ": must be an object; got ", shown(entry), " [SW0256]");
  TensorInfo tensor{name, dtype_from_name(field(entry, "dtype", &json::is_string, where), where), {}};
  for (const json& size : field(entry, "shape", &json::is_array, where)) {
    tensor.shape.push_back(parse_size(size, where + ": shape"));
  }
  const json& offsets = field(entry, "data_offsets", &json::is_array, where);
  TORCH_CHECK_VALUE(offsets.size() == 2, where, ": data_offsets must have two values; got ", shown(offsets),
                    " [SW0262]");
  tensor.begin = parse_size(offsets[0], where + ": data_offsets");
  tensor.end = parse_size(offsets[1], where + ": data_offsets");
  const int64_t bytes = tensor_bytes(tensor.shape, tensor.dtype, where);
  TORCH_CHECK_VALUE(tensor.begin <= tensor.end && tensor.bytes() == bytes, where,
                    ": data_offsets must span shape x dtype, ", bytes, " bytes; got ", shown(offsets),
                    " [SW0263]");
  return tensor;
}

Metadata parse_metadata(const json& entry, const std::string& path) {
  TORCH_CHECK_VALUE(entry.is_object(), path, ": ", kMetadataKey, " must be an object; got ", shown(entry),
                    " [SW0257]");
  Metadata metadata;
  for (const auto& [key, value] : entry.items()) {
    TORCH_CHECK_VALUE(value.is_string(), path, ": ", kMetadataKey, " must map to strings; got ", shown(value),
                      " for ", shown(key), " [SW0258]");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

/// Sorts the tensors by file offset and makes the offsets absolute.
/// Errors: c10::ValueError unless the tensors are contiguous and the last one ends at the end of the file.
void sort_and_check_offsets(FileLayout& layout, const std::string& path) {
  std::stable_sort(layout.tensors.begin(), layout.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  const int64_t data_bytes = layout.total_bytes - layout.header_bytes;
  int64_t next = 0;
  for (TensorInfo& tensor : layout.tensors) {
    TORCH_CHECK_VALUE(tensor.begin == next, path, ": tensor ", shown(tensor.name),
                      ": must begin at the end of the previous tensor, ", next, "; got ", tensor.begin,
                      " [SW0264]");
    TORCH_CHECK_VALUE(tensor.end <= data_bytes, path, ": tensor ", shown(tensor.name),
                      ": must end within the file's ", data_bytes, " bytes of data; got ", tensor.end,
                      "; the file is truncated [SW0265]");
    next = tensor.end;
    tensor.begin += layout.header_bytes;
    tensor.end += layout.header_bytes;
  }
  TORCH_CHECK_VALUE(next == data_bytes, path, ": tensors must fill the file's data, ", data_bytes,
                    " bytes; got ", next, " [SW0266]");
}

/// Returns the JSON without padding.
std::string json_text(const FileLayout& layout) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  if (!layout.metadata.empty()) out[kMetadataKey] = layout.metadata;
  const int64_t data = layout.tensors.empty() ? 0 : layout.tensors.front().begin;
  for (const TensorInfo& tensor : layout.tensors) {
    out[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {tensor.begin - data, tensor.end - data}}};
  }
  try {
    return out.dump();
  } catch (const json::exception&) {
    C10_THROW_ERROR(ValueError, "plan file: names and metadata must be UTF-8; got other bytes [SW0275]");
  }
}

}  // namespace

const TensorInfo& FileLayout::find(const std::string& name) const {
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  C10_THROW_ERROR(ValueError, "layout: must contain the requested tensor; got no tensor named " +
                                  shown(name) + " [SW0276]");
}

FileLayout plan_file(const std::vector<TensorSpec>& tensors, const Metadata& metadata, int64_t alignment) {
  FileLayout layout;
  layout.metadata = metadata;
  std::vector<TensorSpec> ordered = tensors;
  std::stable_sort(ordered.begin(), ordered.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return itemsize(a.dtype) > itemsize(b.dtype);
  });
  std::set<std::string> names{kMetadataKey};
  int64_t next = 0;
  for (const TensorSpec& spec : ordered) {
    const std::string where = "plan file: tensor " + shown(spec.name);
    TORCH_CHECK_VALUE(names.insert(spec.name).second, where,
                      ": must have a unique name; got it twice [SW0272]");
    TensorInfo tensor{spec.name, spec.dtype, spec.shape, next, next};
    const bool fits = !__builtin_add_overflow(next, tensor_bytes(spec.shape, spec.dtype, where), &tensor.end);
    TORCH_CHECK_VALUE(fits, where, ": the file must fit 63 bits of bytes; got more [SW0273]");
    next = tensor.end;
    layout.tensors.push_back(std::move(tensor));
  }
  const int64_t unpadded = kLengthBytes + static_cast<int64_t>(json_text(layout).size());
  layout.header_bytes = (unpadded + alignment - 1) / alignment * alignment;
  TORCH_CHECK_VALUE(layout.header_bytes - kLengthBytes <= kMaxJsonBytes,
                    "plan file: the header must be at most ", kMaxJsonBytes, " bytes; got ",
                    layout.header_bytes - kLengthBytes, " [SW0274]");
  for (TensorInfo& tensor : layout.tensors) {
    tensor.begin += layout.header_bytes;
    tensor.end += layout.header_bytes;
  }
  layout.total_bytes = layout.header_bytes + next;
  return layout;
}

std::string header_text(const FileLayout& layout) {
  std::string text = json_text(layout);
  text.resize(static_cast<size_t>(layout.header_bytes - kLengthBytes), ' ');
  std::string length;
  for (int byte = 0; byte < kLengthBytes; ++byte) length += static_cast<char>(text.size() >> (8 * byte));
  return length + text;
}

int64_t header_length(const unsigned char (&first8)[8], int64_t file_bytes, const std::string& path) {
  uint64_t length = 0;  // the file is little-endian, independent of the host
  for (int byte = 7; byte >= 0; --byte) length = length << 8 | first8[byte];
  TORCH_CHECK_VALUE(length <= uint64_t{kMaxJsonBytes}, path, ": the header must be at most ", kMaxJsonBytes,
                    " bytes; got ", length, " [SW0251]");
  const auto json_bytes = static_cast<int64_t>(length);
  TORCH_CHECK_VALUE(json_bytes <= file_bytes - kLengthBytes, path, ": the header must fit into the file's ",
                    file_bytes, " bytes; got ", length, "; the file is truncated [SW0250]");
  return json_bytes;
}

FileLayout parse_header(const std::string& json_text, int64_t file_bytes, const std::string& path) {
  const json parsed = base::parse_json(json_text, path + ": header");
  TORCH_CHECK_VALUE(parsed.is_object(), path, ": the header must be a JSON object; got ", shown(parsed),
                    " [SW0252]");
  FileLayout layout;
  layout.header_bytes = kLengthBytes + static_cast<int64_t>(json_text.size());
  layout.total_bytes = file_bytes;
  for (const auto& [name, entry] : parsed.items()) {
    if (name == kMetadataKey) {
      layout.metadata = parse_metadata(entry, path);
    } else {
      layout.tensors.push_back(parse_tensor(name, entry, path));
    }
  }
  sort_and_check_offsets(layout, path);
  return layout;
}

}  // namespace shardwise::io

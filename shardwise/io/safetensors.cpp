#include "shardwise/io/safetensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "shardwise/base/json.h"

namespace shardwise::io {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

FileLayout read_layout(const base::File& file) {
  const int64_t bytes = file.size();
  unsigned char first8[8];
  TORCH_CHECK_VALUE(bytes >= 8, file.path(), ": must begin with 8 bytes of header length; got ", bytes,
                    " bytes [SW0249]");
  file.read(0, 8, first8);
  std::string json(header_length(first8, bytes, file.path()), '\0');
  file.read(8, static_cast<int64_t>(json.size()), json.data());
  return parse_header(json, bytes, file.path());
}

/// Rejects slashes, which would lead out of the directory, and control characters, because errors print the
/// name verbatim.
bool is_file_name(const std::string& name) {
  const auto is_allowed = [](char c) { return c != '/' && (c < 0 || (c >= ' ' && c <= '~')); };
  return !name.empty() && name.size() <= NAME_MAX && std::all_of(name.begin(), name.end(), is_allowed);
}

/// Returns the map from tensor name to file name of an index.
std::map<std::string, std::string> parse_weight_map(const std::string& text, const std::string& path) {
  const nlohmann::json parsed = base::parse_json(text, path);
  const nlohmann::json* weight_map = base::Fields(parsed, path + ": ").find("weight_map");
  TORCH_CHECK_VALUE(weight_map && weight_map->is_object(), path, ": weight_map must be an object; got ",
                    weight_map ? base::shown(*weight_map) : "none", " [SW0267]");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : weight_map->items()) {
    TORCH_CHECK_VALUE(file.is_string() && is_file_name(file.get<std::string>()), path,
                      ": weight_map must map to file names; got ", base::shown(file), " for ",
                      base::shown(tensor), " [SW0268]");
    files[tensor] = file.get<std::string>();
  }
  return files;
}

bool is_indexed(const std::string& directory) {
  const bool has_index = base::exists(directory + "/" + kIndexFile);
  const bool has_single = base::exists(directory + "/" + kSingleFile);
  TORCH_CHECK_VALUE(has_single || has_index, directory, ": must contain ", kSingleFile, " or ", kIndexFile,
                    "; got neither [SW0248]");
  return !has_single;
}

}  // namespace

std::vector<std::string> files_of(const std::string& directory) {
  const std::string inside = directory + "/";
  if (!is_indexed(directory)) return {inside + kSingleFile};
  const std::string index = inside + kIndexFile;
  std::set<std::string> files = {index};
  for (const auto& [tensor, file] : parse_weight_map(base::read_text(index, base::kMaxJsonBytes), index))
    files.insert(inside + file);
  return {files.begin(), files.end()};
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(base::File::open_to_read(path)), layout_(read_layout(file_)), bytes_read_(layout_.header_bytes) {
  for (size_t i = 0; i < layout_.tensors.size(); ++i) index_[layout_.tensors[i].name] = i;
}

const TensorInfo& SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  TORCH_CHECK_VALUE(found != index_.end(), path(), ": must contain the tensor ", base::shown(name),
                    "; got none of that name [SW0247]");
  return layout_.tensors[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, int64_t offset, int64_t length, void* dst) const {
  TORCH_INTERNAL_ASSERT(offset >= 0 && length >= 0 && offset <= tensor.bytes() - length, tensor.name,
                        ": bytes ", offset, " + ", length, " of ", tensor.bytes());
  file_.read(tensor.begin + offset, length, dst);
  bytes_read_ += length;
}

SafetensorsDirectory::SafetensorsDirectory(const std::string& directory) : directory_(directory) {
  if (is_indexed(directory)) {
    open_indexed(directory + "/" + kIndexFile);
    return;
  }
  const SafetensorsFile& file = files_.emplace(kSingleFile, directory + "/" + kSingleFile).first->second;
  for (const TensorInfo& tensor : file.tensors()) locations_[tensor.name] = {&file, &tensor};
}

void SafetensorsDirectory::open_indexed(const std::string& index_path) {
  const std::string index = base::read_text(index_path, base::kMaxJsonBytes);
  index_bytes_ = static_cast<int64_t>(index.size());
  const auto weight_map = parse_weight_map(index, index_path);
  for (const auto& [tensor, file_name] : weight_map) {
    auto file = files_.find(file_name);
    if (file == files_.end()) file = files_.emplace(file_name, directory_ + "/" + file_name).first;
    locations_[tensor] = {&file->second, &file->second.find(tensor)};
  }
  for (const auto& [file_name, file] : files_) {
    for (const TensorInfo& tensor : file.tensors()) {
      const auto mapped = weight_map.find(tensor.name);
      TORCH_CHECK_VALUE(mapped != weight_map.end() && mapped->second == file_name, index_path,
                        ": weight_map must list every tensor of its files; got ", base::shown(tensor.name),
                        " in ", file_name, mapped == weight_map.end() ? " only" : " and " + mapped->second,
                        " [SW0269]");
    }
  }
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> names;
  names.reserve(locations_.size());
  for (const auto& [name, location] : locations_) names.push_back(name);
  return names;
}

SafetensorsDirectory::Location SafetensorsDirectory::find(const std::string& name) const {
  const auto found = locations_.find(name);
  TORCH_CHECK_VALUE(found != locations_.end(), directory_, ": must contain the tensor ", base::shown(name),
                    "; got none of that name [SW0247]");
  return found->second;
}

int64_t SafetensorsDirectory::bytes_read() const {
  int64_t bytes = index_bytes_;
  for (const auto& [name, file] : files_) bytes += file.bytes_read();
  return bytes;
}

}  // namespace shardwise::io

#include "shardwise/checkpoint/shard_index.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"
#include "shardwise/checkpoint/index_format.h"

namespace shardwise::checkpoint {

using base::Range;
using nlohmann::json;

namespace {

constexpr const char* kFormat = "shardwise.shards";
constexpr int64_t kVersion = 1;
constexpr const char* kKept = "not read; kept by the first rank";

const json& field(const base::Fields& fields, const char* name, bool (json::*is_type)() const noexcept,
                  const char* type) {
  const json& value = fields.at(name);
  if (!(value.*is_type)()) base::throw_invalid(fields.label(name), type, value);
  return value;
}

const json& array(const base::Fields& fields, const char* name) {
  return field(fields, name, &json::is_array, "a list");
}

std::vector<int64_t> integers(const base::Fields& fields, const char* name) {
  std::vector<int64_t> numbers;
  for (const json& number : array(fields, name)) numbers.push_back(fields.to_integer(number, name));
  return numbers;
}

Range parse_range(const base::Fields& fields, const json& range) {
  TORCH_CHECK_VALUE(range.is_array() && range.size() == 2, fields.label("held"),
                    " must list ranges [begin, end] for each rank; got ", base::shown(range), " [SW0280]");
  return {fields.to_integer(range[0], "held"), fields.to_integer(range[1], "held")};
}

std::vector<std::vector<Range>> parse_held(const base::Fields& fields) {
  std::vector<std::vector<Range>> held;
  for (const json& of_rank : array(fields, "held")) {
    TORCH_CHECK_VALUE(of_rank.is_array(), fields.label("held"),
                      " must list ranges [begin, end] for each rank; got ", base::shown(of_rank),
                      " [SW0280]");
    std::vector<Range> ranges;
    for (const json& range : of_rank) ranges.push_back(parse_range(fields, range));
    held.push_back(std::move(ranges));
  }
  return held;
}

ShardedTensor parse_sharded_tensor(const json& entry, const std::string& where) {
  TORCH_CHECK_VALUE(entry.is_object(), where, ": must be an object; got ", base::shown(entry), " [SW0256]");
  const base::Fields fields(entry, where + ".");
  return {io::dtype_from_name(fields.text("dtype"), where), integers(fields, "shape"),
          field(fields, "rule", &json::is_string, "a string").get<std::string>(), fields.integer("dim"),
          parse_held(fields)};
}

json held_json(const ShardedTensor& tensor) {
  json held = json::array();
  for (const auto& ranges : tensor.held) {
    json of_rank = json::array();
    for (const Range& range : ranges) of_rank.push_back({range.begin, range.end});
    held.push_back(std::move(of_rank));
  }
  return held;
}

/// Returns the file names. Errors: c10::ValueError unless they are those of ranks 0 to tp − 1.
std::vector<std::string> parse_files(const base::Fields& fields) {
  const int64_t tp = fields.integer("tp");
  const json& names = array(fields, "files");
  TORCH_CHECK_VALUE(tp >= 1 && static_cast<int64_t>(names.size()) == tp, fields.label("files"),
                    " must list one file per rank; got ", names.size(), " for tp ", tp, " [SW0278]");
  std::vector<std::string> files;
  for (const json& name : names) {
    const std::string expected = shard_file_name(static_cast<int>(files.size()), static_cast<int>(tp));
    TORCH_CHECK_VALUE(name == expected, fields.label("files"), " must name ", expected, "; got ",
                      base::shown(name), " [SW0279]");
    files.push_back(expected);
  }
  return files;
}

}  // namespace

std::vector<int64_t> ShardedTensor::local_shape(int rank) const {
  std::vector<int64_t> local = shape;
  if (is_unsharded()) return local;
  local.at(dim) = 0;
  for (const Range& range : held.at(rank)) local[dim] += range.size();
  return local;
}

ShardedTensor sharded_tensor(const model::StoredTensor& stored, io::Dtype dtype, int tp) {
  ShardedTensor sharded{dtype, stored.shape, model::rule_text(stored), stored.dim, {}};
  for (int rank = 0; rank < tp; ++rank) {
    std::vector<Range>& ranges = sharded.held.emplace_back();
    for (const auto& piece : stored.held(rank)) {
      ranges.push_back({piece.global_begin, piece.global_begin + piece.size});
    }
  }
  return sharded;
}

ShardedTensor unsharded_tensor(const std::vector<int64_t>& shape, io::Dtype dtype) {
  return {dtype, shape, kKept, 0, {}};
}

bool is_sharded(const std::filesystem::path& directory) {
  return base::exists(directory / kShardIndex);
}

std::string shard_file_name(int rank, int tp) {
  return fmt::format("rank-{}-of-{}.safetensors", rank, tp);
}

std::string to_json(const ShardIndex& index) {
  nlohmann::ordered_json out{
      {"format", kFormat}, {"version", kVersion}, {"tp", index.tp()}, {"files", index.files}};
  for (const auto& [name, sharded] : index.tensors) {
    out["tensors"][name] = {{"dtype", io::dtype_name(sharded.dtype)},
                            {"shape", sharded.shape},
                            {"rule", sharded.rule},
                            {"dim", sharded.dim},
                            {"held", held_json(sharded)}};
  }
  return out.dump() + "\n";
}

ShardIndex read_shard_index(const std::filesystem::path& directory) {
  const std::string path = directory / kShardIndex;
  const json parsed = base::read_json(path);
  const base::Fields fields(parsed, path + ": ");
  check_index_format(fields, path, kFormat, kVersion);
  ShardIndex index{parse_files(fields), {}};
  for (const auto& [name, entry] : field(fields, "tensors", &json::is_object, "an object").items()) {
    index.tensors.emplace(name, parse_sharded_tensor(entry, path + ": " + base::shown(name)));
  }
  return index;
}

}  // namespace shardwise::checkpoint

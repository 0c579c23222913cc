#include "shardwise/text/model_directory.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/base/json.h"

namespace shardwise::text {

using nlohmann::json;

json read_object(const std::string& path) {
  if (!base::exists(path)) return json::object();
  json object = base::read_json(path);
  TORCH_CHECK_VALUE(object.is_object(), path, ": must be a JSON object; got ", base::shown(object),
                    " [SW0215]");
  return object;
}

std::string directory_of(const std::string& file) {
  const std::string directory = std::filesystem::path(file).parent_path().string();
  return directory.empty() ? "." : directory;
}

const std::string* token_text(const json& token) {
  if (token.is_string()) return token.get_ptr<const std::string*>();
  if (!token.is_object()) return nullptr;
  const auto content = token.find("content");
  return content == token.end() ? nullptr : content->get_ptr<const std::string*>();
}

}  // namespace shardwise::text

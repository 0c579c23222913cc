#include "tests/checkpoint/stored_model.h"

#include <nlohmann/json.hpp>
#include <random>

#include "shardwise/model/config_tensors.h"

namespace shardwise::testing {

namespace fs = std::filesystem;
using nlohmann::json;

std::string safetensors_of(const StoredTensors& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text + data;
}

StoredTensors read_safetensors(const std::string& path) {
  const std::string file = test::contents(path);
  size_t length = 0;
  for (int i = 0; i < 8; ++i) length += size_t{static_cast<unsigned char>(file.at(i))} << (8 * i);
  const std::string data = file.substr(8 + length);
  StoredTensors tensors;
  const json header = json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], data.substr(begin, end - begin)};
  }
  return tensors;
}

StoredTensors random_tensors(const model::Config& config, const std::string& dtype) {
  std::mt19937 random(7);
  StoredTensors tensors;
  for (const model::WholeTensor& tensor : model::stored_whole_tensors(config)) {
    std::string bytes(tensor.numel() * (dtype == "F32" ? 4 : 2), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    tensors[tensor.name] = {dtype, tensor.shape, bytes};
  }
  return tensors;
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[fs::relative(entry.path(), folder)] = test::contents(entry.path());
  }
  return files;
}

}  // namespace shardwise::testing

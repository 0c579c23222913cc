#include "tests/checkpoint/stored_model.h"

#include <nlohmann/json.hpp>
#include <random>

#include "shardwise/model/names.h"

namespace shardwise::testing {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Builds the header of contiguous tensors.
class Header {
 public:
  void add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
           int64_t bytes) {
    entries_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {end_, end_ + bytes}}};
    end_ += bytes;
  }
  int64_t data_bytes() const { return end_; }
  std::string text(size_t alignment = 1) const {
    std::string text = entries_.dump();
    text.resize((8 + text.size() + alignment - 1) / alignment * alignment - 8, ' ');
    std::string length(8, '\0');
    for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
    return length + text;
  }

 private:
  json entries_ = json::object();
  int64_t end_ = 0;
};

}  // namespace

std::string safetensors_of(const StoredTensors& tensors, size_t alignment) {
  Header header;
  std::string data;
  for (const bool is_aligned : {true, false}) {
    for (const auto& [name, tensor] : tensors) {
      if ((tensor.bytes.size() % alignment == 0) != is_aligned) continue;
      header.add(name, tensor.dtype, tensor.shape, std::ssize(tensor.bytes));
      data += tensor.bytes;
    }
  }
  return header.text(alignment) + data;
}

FileBytes put_zeros(const std::string& directory, const config::Config& config) {
  Header header;
  for (const model::StoredTensor& tensor : model::stored_tensors(config, /*tp=*/1))
    header.add(tensor.name, "F32", tensor.shape, 4 * c10::multiply_integers(tensor.shape));
  const std::string text = header.text(), file = directory + "/model.safetensors";
  const FileBytes bytes{std::ssize(text), std::ssize(text) + header.data_bytes()};
  fs::create_directories(directory);
  std::ofstream(directory + "/config.json") << config::to_json(config);
  std::ofstream(file, std::ios::binary) << text;
  fs::resize_file(file, bytes.all);
  return bytes;
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

StoredTensors random_tensors(const config::Config& config, const std::string& dtype) {
  std::mt19937 random(7);
  StoredTensors tensors;
  for (const model::StoredTensor& tensor : model::stored_tensors(config, /*tp=*/1)) {
    std::string bytes(c10::multiply_integers(tensor.shape) * (dtype == "F32" ? 4 : 2), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    tensors[tensor.name] = {dtype, tensor.shape, bytes};
  }
  return tensors;
}

std::map<std::string, std::string> files_in(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    files[fs::relative(entry.path(), directory)] = test::contents(entry.path());
  }
  return files;
}

}  // namespace shardwise::testing

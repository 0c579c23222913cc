#include "tests/fuzz/target.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/infer/generation_config.h"
#include "shardwise/io/slices.h"
#include "shardwise/model/names.h"
#include "shardwise/text/bpe_tokenizer.h"
#include "shardwise/text/sentencepiece_tokenizer.h"
#include "shardwise/text/token_file.h"

namespace shardwise::fuzz {
namespace {

constexpr int64_t kLargestHead = 1 << 16;  // a valid config may require 2^30 frequencies

void hold(bool is_met, const std::string& what) {
  if (!is_met) throw std::logic_error("accepted an input that violates: " + what);
}

void read_config(const std::string& path) {
  const config::Config config = config::load_config(path);
  hold(config::parse_config(config::to_json(config), "written") == config,
       "parsing the written config gives the same config");
  hold(config.num_attention_heads % config.num_key_value_heads == 0, "KV heads divide query heads");
  hold(config::parameter_count(config) > 0, "the model has parameters");
  if (config.head_dim > kLargestHead) return;
  for (const double frequency : config::inverse_frequencies(config)) {
    hold(std::isfinite(frequency) && frequency >= 0, "rotary frequencies are finite");
  }
}

int64_t bytes_of(const io::TensorInfo& tensor) {
  int64_t bytes = io::itemsize(tensor.dtype);
  for (const int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

/// Returns the offset of the data, computed independently of the reader.
int64_t end_of_header(const std::string& path) {
  uint64_t length = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&length), sizeof(length));
  return static_cast<int64_t>(sizeof(length) + length);
}

/// Checks that the tensors are contiguous from the header to the end of the file, each with the bytes of its
/// shape.
void check_places(const io::SafetensorsFile& file) {
  int64_t end = end_of_header(file.path());
  for (const io::TensorInfo& tensor : file.tensors()) {
    hold(tensor.begin == end, "a tensor begins at the end of the previous tensor");
    hold(tensor.bytes() == bytes_of(tensor), "a tensor has the bytes of its shape and dtype");
    end = tensor.end;
  }
  hold(end == static_cast<int64_t>(std::filesystem::file_size(file.path())),
       "the last tensor ends at the end of the file");
}

/// Reads every tensor completely, and again in two halves of its first dim.
void read_tensors(const io::SafetensorsFile& file) {
  check_places(file);
  for (const io::TensorInfo& tensor : file.tensors()) {
    std::string full(tensor.bytes(), '\0');
    file.read_tensor(tensor, full.data());
    hold(file.find(tensor.name) == tensor, "a tensor is found by its name");
    if (tensor.shape.empty()) continue;
    const base::Split halves = base::Split::even("rows", tensor.shape[0], 2);
    std::string joined;
    for (const int rank : {0, 1}) {
      const base::Range rows = halves.range(rank);
      std::string half(tensor.shape[0] == 0 ? 0 : tensor.bytes() / tensor.shape[0] * rows.size(), '\0');
      io::read_block(file, io::block_of(tensor, /*dim=*/0, {0, tensor.shape[0]}, rows), half.data());
      joined += half;
    }
    hold(joined == full, "the halves equal the full tensor");
  }
}

void read_directory(const std::string& path) {
  const io::SafetensorsDirectory directory(std::filesystem::path(path).parent_path());
  for (const std::string& name : directory.names()) {
    const auto [file, tensor] = directory.find(name);
    hold(file->find(name) == *tensor, "the index finds the file's tensors");
  }
}

/// The config of the model from which the seeds of shard_index were sharded.
const std::string kShardedConfig =
    R"({"model_type": "llama", "vocab_size": 259, "hidden_size": 12, "intermediate_size": 10,
        "num_hidden_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";

/// Checks that reading all files, and reading one rank's file, gives every weight completely.
void read_shards(const std::string& path) {
  const config::Config config = config::parse_config(kShardedConfig, "the seeds' config");
  const auto directory = std::filesystem::path(path).parent_path();
  const checkpoint::WeightFiles files(directory, config);
  checkpoint::check_weights(files, config);
  for (const model::StoredTensor& weight : model::stored_tensors(config, /*tp=*/1)) {
    int64_t size = 0;
    const auto known = checkpoint::known_tensors(files, config, files.tp());
    const int64_t dim = known.at(weight.name).dim;
    for (const checkpoint::TensorSource& part : files.parts(weight.name, dim)) size += part.size;
    hold(size == weight.shape.at(dim), "the shards of a tensor cover it");
  }
}

void read_generation(const std::string& path) {
  const auto config = infer::read_generation_config(std::filesystem::path(path).parent_path());
  infer::check_sampling(config.sampling, "written");
  hold(config.max_new_tokens.value_or(1) >= 1, "it requests at least one token");
}

/// Several scripts, combining marks, whitespace, a control character, half an emoji, and invalid UTF-8.
constexpr std::string_view kText = "It's  naïve\n\t 12345 — e\u0301 並列 \xf0\x9f\x91 <s>\x01 can't\r\n";

/// A tokenizer that is accepted must be usable: it encodes any text to ids of its vocabulary, and decodes
/// them.
void use_tokenizer(const text::Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  try {
    ids = tokenizer.encode(kText);
  } catch (const c10::Error&) {
    return;  // a pattern that exceeds the time limit
  }
  for (const int64_t id : ids) hold(id >= 0 && id < tokenizer.vocab_size(), "ids are in the vocabulary");
  const auto stream = tokenizer.stream(text::SpecialTokens::with);
  std::string streamed;
  for (const int64_t id : ids) streamed += stream->push(id);
  hold(streamed + stream->finish() == tokenizer.decode(ids), "streaming gives the text of decoding all ids");
}

void read_tokens(const std::string& path) {
  const text::TokenFile file(path);
  std::vector<int64_t> ids(file.size());
  file.read(0, ids);
  for (const int64_t id : ids) hold(id >= 0 && id < file.vocab_size(), "ids are in the vocabulary");
}

}  // namespace

std::vector<Target> targets() {
  return {{"config", "config.json", &Mutator::json, read_config},
          {"safetensors", "model.safetensors", &Mutator::safetensors,
           [](const std::string& path) { read_tensors(io::SafetensorsFile(path)); }},
          {"index", "model.safetensors.index.json", &Mutator::json, read_directory},
          {"tokenizer", "tokenizer.json", &Mutator::json,
           [](const std::string& path) { use_tokenizer(text::BpeTokenizer(path)); }},
          {"sentencepiece", "tokenizer.model", &Mutator::raw,
           [](const std::string& path) { use_tokenizer(text::SentencePieceTokenizer(path)); }},
          {"shard_index", checkpoint::kShardIndex, &Mutator::json, read_shards},
          {"generation_config", "generation_config.json", &Mutator::json, read_generation},
          {"tokens", "tokens.bin", &Mutator::raw, read_tokens}};
}

}  // namespace shardwise::fuzz

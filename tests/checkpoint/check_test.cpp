// Every error message for a damaged checkpoint, and the supported file formats.
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>

#include "shardwise/io/safetensors.h"
#include "shardwise/io/writer.h"
#include "tests/checkpoint/fixture.h"
#include "tests/support/error_text.h"
#include "tests/support/ranks.h"

namespace shardwise::testing::check_test {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_text;

/// A tensor of a safetensors file in memory, which a test modifies and writes back.
struct Tensor {
  io::Dtype dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using File = std::map<std::string, Tensor>;

File read(const std::string& path) {
  File tensors;
  const io::SafetensorsFile file(path);
  for (const io::TensorInfo& info : file.tensors()) {
    Tensor tensor{info.dtype, info.shape, std::string(info.bytes(), '\0')};
    file.read_tensor(info, tensor.bytes.data());
    tensors[info.name] = std::move(tensor);
  }
  return tensors;
}

void write(const std::string& path, const File& tensors) {
  fs::remove(path);
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  const auto file = io::SafetensorsWriter::create(path, io::plan_file(specs));
  for (const auto& [name, tensor] : tensors) file.write_tensor(file.layout().find(name), tensor.bytes.data());
}

class Check : public ::testing::Test {
 protected:
  Check() : full_(full_state(config_, at::kBFloat16, /*seed=*/1)), directory_(dir_ / "step-1") {
    save_full(dir_.path(), config_, full_, /*ranks=*/1, /*step=*/1);
  }

  /// Returns the error of check() after `change` to one of the files; sets loaded_ to the error of the load.
  std::string error_after(const std::string& file, const std::function<void(File&)>& change) const {
    File tensors = read(directory_ + "/" + file);
    change(tensors);
    write(directory_ + "/" + file, tensors);
    const std::string text = error_text([&] { checkpoint::check(directory_, /*needs_state=*/true); });
    RankState rank(config_, comm::Group(), full_);
    if (file == "model.safetensors") {
      loaded_ = error_text([&] { checkpoint::load_weights(directory_, rank.weights); });
    } else {
      EXPECT_NO_THROW(checkpoint::check(directory_, /*needs_state=*/false));
      loaded_ = error_text([&] { checkpoint::load_state(directory_, rank.state, rank.weights); });
    }
    return text;
  }

  const config::Config config_ = uneven_config();
  const FullState full_;
  const TemporaryDirectory dir_;
  const std::string directory_;
  mutable std::string loaded_;
  const std::string kQ = "model.layers.1.self_attn.q_proj.weight";
};

TEST_F(Check, MissingWeight) {
  const std::string text = error_after("model.safetensors", [&](File& file) { file.erase(kQ); });
  EXPECT_EQ(text, directory_ + ": must contain the tensor \"" + kQ + "\"; got none of that name");
  EXPECT_EQ(loaded_, text);
}

TEST_F(Check, WeightWithWrongShape) {
  const std::string text = error_after("model.safetensors", [&](File& file) { file[kQ].shape = {12, 24}; });
  EXPECT_EQ(text, directory_ + "/model.safetensors: " + kQ + " must have the shape [24, 12]; got [12, 24]");
  EXPECT_EQ(loaded_, text);
}

TEST_F(Check, WeightWithWrongDtype) {
  const std::string text =
      error_after("model.safetensors", [&](File& file) { file[kQ].dtype = io::Dtype::I16; });
  EXPECT_EQ(text, directory_ + "/model.safetensors: " + kQ + " must be F32, BF16, F16 or F64; got I16");
  EXPECT_EQ(loaded_, text);
}

TEST_F(Check, UnexpectedWeight) {
  File file = read(directory_ + "/model.safetensors");
  file["model.layers.2.input_layernorm.weight"] = file["model.norm.weight"];
  write(directory_ + "/model.safetensors", file);
  EXPECT_EQ(error_text([&] { checkpoint::check(directory_, false); }),
            directory_ +
                "/model.safetensors: must contain only tensors of the model in config.json; got "
                "\"model.layers.2.input_layernorm.weight\"");
}

TEST_F(Check, RedundantTensorsOfOlderExportersAreIgnored) {
  File file = read(directory_ + "/model.safetensors");
  file["model.layers.0.self_attn.rotary_emb.inv_freq"] = file["model.norm.weight"];
  write(directory_ + "/model.safetensors", file);
  EXPECT_NO_THROW(checkpoint::check(directory_, true));
}

TEST_F(Check, LmHeadMayBeMissingOnlyIfTied) {
  File file = read(directory_ + "/model.safetensors");
  const Tensor head = file.extract("lm_head.weight").mapped();
  write(directory_ + "/model.safetensors", file);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::check(directory_, false); }), "lm_head.weight");
  config::Config tied = config_;
  tied.tie_word_embeddings = true;
  dir_.put("step-1/config.json", config::to_json(tied));
  EXPECT_NO_THROW(checkpoint::check(directory_, false));
  file["lm_head.weight"] = head;  // some exporters write a copy
  write(directory_ + "/model.safetensors", file);
  EXPECT_NO_THROW(checkpoint::check(directory_, false));
}

TEST_F(Check, TruncatedWeights) {
  const std::string path = directory_ + "/model.safetensors";
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::check(directory_, false); }), path);
  RankState rank(config_, comm::Group(), full_);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::load_weights(directory_, rank.weights); }), path);
}

TEST_F(Check, MissingWeightsOrConfig) {
  fs::rename(directory_ + "/model.safetensors", directory_ + "/weights");
  EXPECT_EQ(error_text([&] { checkpoint::check(directory_, false); }),
            directory_ + ": must contain model.safetensors or model.safetensors.index.json; got neither");
  fs::remove(directory_ + "/config.json");
  EXPECT_PRED2(contains, error_text([&] { checkpoint::check(directory_, false); }),
               directory_ + "/config.json");
}

TEST_F(Check, MissingOptimizerState) {
  fs::remove(directory_ + "/optimizer.safetensors");
  EXPECT_NO_THROW(checkpoint::check(directory_, /*needs_state=*/false));
  const std::string line =
      directory_ +
      ": must contain optimizer.safetensors to be resumed; got none; --init loads the weights alone";
  EXPECT_EQ(error_text([&] { checkpoint::check(directory_, true); }), line);
  RankState rank(config_, comm::Group(), full_);
  EXPECT_EQ(error_text([&] { checkpoint::load_state(directory_, rank.state, rank.weights); }), line);
}

TEST_F(Check, OptimizerTensorsMissingOrWithWrongShapeOrDtype) {
  const std::string path = directory_ + "/optimizer.safetensors";
  const File good = read(path);
  for (const std::string what : {".master", ".exp_avg", ".exp_avg_sq"}) {
    const std::string name = kQ + what;
    EXPECT_EQ(error_after("optimizer.safetensors", [&](File& file) { file.erase(name); }),
              path + ": must contain the tensor \"" + name + "\"; got none of that name");
    EXPECT_PRED2(contains, loaded_, name);
    write(path, good);
    EXPECT_EQ(error_after("optimizer.safetensors", [&](File& file) { file[name].shape = {288}; }),
              path + ": " + name + " must have the shape [24, 12]; got [288]");
    EXPECT_PRED2(contains, loaded_, name);
    write(path, good);
    EXPECT_EQ(error_after("optimizer.safetensors", [&](File& file) { file[name].dtype = io::Dtype::I32; }),
              path + ": " + name + " must be F32 or F64; got I32");
    EXPECT_PRED2(contains, loaded_, name);
    write(path, good);
  }
}

/// The check of the headers passes; only one rank reads the value, and every rank throws the same error.
TEST_F(Check, NanAndInf) {
  const std::string weights = directory_ + "/model.safetensors",
                    state = directory_ + "/optimizer.safetensors";
  File file = read(weights);
  file[kQ].bytes.replace(file[kQ].bytes.size() - 2, 2, "\x80\xff", 2);  // in the last row, -inf in bf16
  write(weights, file);
  File moments = read(state);
  moments[kQ + ".exp_avg"].bytes.replace(0, 4, "\x00\x00\xc0\xff", 4);  // in the first row, NaN
  write(state, moments);
  EXPECT_NO_THROW(checkpoint::check(directory_, /*needs_state=*/true));
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      RankState rank(config_, group, full_);
      EXPECT_EQ(
          error_text<base::CollectiveError>([&] { checkpoint::load_weights(directory_, rank.weights); }),
          weights + ": " + kQ + " must be finite; got -inf");
      EXPECT_EQ(error_text<base::CollectiveError>(
                    [&] { checkpoint::load_state(directory_, rank.state, rank.weights); }),
                state + ": " + kQ + ".exp_avg must be finite; got nan");
    });
  }
}

TEST_F(Check, ProgressCounters) {
  const std::string path = directory_ + "/optimizer.safetensors";
  const File good = read(path);
  for (const std::string name : {"progress.step", "progress.sequences", "progress.seq_len"}) {
    EXPECT_EQ(error_after("optimizer.safetensors", [&](File& file) { file.erase(name); }),
              path + ": must contain the tensor \"" + name + "\"; got none of that name");
    write(path, good);
    EXPECT_EQ(error_after("optimizer.safetensors", [&](File& file) { file[name].shape = {1}; }),
              path + ": " + name + " must have the shape []; got [1]");
    write(path, good);
    EXPECT_EQ(error_after("optimizer.safetensors", [&](File& file) { file[name].dtype = io::Dtype::U64; }),
              path + ": " + name + " must be I64; got U64");
    write(path, good);
    EXPECT_EQ(
        error_after("optimizer.safetensors", [&](File& file) { file[name].bytes = std::string(8, '\xff'); }),
        path + ": " + name + " must not be negative; got -1");
    write(path, good);
  }
}

TEST_F(Check, ResumesOnlyInTheSavedDtype) {
  RankState fp32(config_, comm::Group(), full_state(config_, at::kFloat, 1));
  EXPECT_EQ(
      error_text([&] { checkpoint::load_state(directory_, fp32.state, fp32.weights); }),
      directory_ +
          "/optimizer.safetensors: must be resumed in the dtype in which it was saved; got Float but fp32 "
          "master weights");
  save_full(dir_.path(), config_, full_state(config_, at::kFloat, 1), /*ranks=*/1, /*step=*/2);
  RankState bf16(config_, comm::Group(), full_);
  EXPECT_EQ(error_text([&] { checkpoint::load_state(dir_ / "step-2", bf16.state, bf16.weights); }),
            dir_ /
                "step-2/optimizer.safetensors: must be resumed in the dtype in which it was saved; got "
                "BFloat16 and "
                "no fp32 master weights");
}

TEST_F(Check, ReadsSeveralFilesByTheirIndex) {
  const File full = read(directory_ + "/model.safetensors");
  const std::array<std::string, 2> names = {"model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors"};
  std::array<File, 2> files;
  nlohmann::json index;
  for (const auto& [name, tensor] : full) {
    const size_t file = index["weight_map"].size() % 2;
    files[file][name] = tensor;
    index["weight_map"][name] = names[file];
  }
  for (const size_t file : {0, 1}) write(directory_ + "/" + names[file], files[file]);
  fs::remove(directory_ + "/model.safetensors");
  dir_.put("step-1/model.safetensors.index.json", index.dump());
  EXPECT_NO_THROW(checkpoint::check(directory_, true));
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, full_);
    fill_(rank, full_);
    for (const nn::UsedParameter& used : rank.weights.used_parameters())
      used.parameter->value.detach().fill_(-1);
    checkpoint::load_weights(directory_, rank.weights);
    EXPECT_EQ(differing(rank, full_), std::vector<std::string>{});
  });
}

TEST_F(Check, ResolveAcceptsTheStepDirectoryOrItsParent) {
  EXPECT_EQ(checkpoint::resolve(directory_), directory_);
  EXPECT_EQ(checkpoint::resolve(dir_.path()), directory_);
  EXPECT_EQ(checkpoint::resolve(dir_ / "latest"), dir_ / "latest");
}

TEST_F(Check, ResolveFindsTheNewestStepWithoutALink) {
  for (const char* name : {"step-9", "step-10", "step-11"}) fs::copy(directory_, dir_ / name);
  fs::copy(directory_, dir_ / "step-0100");  // no name of a save
  fs::remove(dir_ / "step-11/config.json");
  EXPECT_EQ(checkpoint::resolve(dir_.path()), directory_) << "to which latest points";
  fs::remove(dir_ / "latest");
  EXPECT_EQ(checkpoint::resolve(dir_.path()), dir_ / "step-10");
  EXPECT_EQ(checkpoint::resolve(dir_ / "step-9"), dir_ / "step-9");
  for (const char* name : {"step-1", "step-9", "step-10"}) fs::remove_all(dir_ / name);
  dir_.put("step-0/config.json", "{}");
  EXPECT_EQ(checkpoint::resolve(dir_.path()), dir_ / "step-0");
}

TEST_F(Check, ResolveReportsWhatItFound) {
  const auto error_of = [](const fs::path& path) { return error_text([&] { checkpoint::resolve(path); }); };
  const std::string rule = ": must contain a config.json or a link latest to a directory that does; got ";
  EXPECT_EQ(error_of(dir_ / "none"), "checkpoint " + dir_ / "none" + rule + "a path that does not exist");
  EXPECT_EQ(error_of(dir_.put("file", "")), "checkpoint " + dir_ / "file" + rule + "a file");
  fs::create_directory(dir_ / "empty");
  EXPECT_EQ(error_of(dir_ / "empty"), "checkpoint " + dir_ / "empty" + rule + "a directory with neither");
  fs::remove(directory_ + "/config.json");
  EXPECT_EQ(error_of(dir_.path()), "checkpoint " + dir_.path() + rule + "a link to a directory without one");
  fs::remove_all(directory_);
  EXPECT_EQ(error_of(dir_.path()),
            "checkpoint " + dir_.path() + rule + "a link to a directory that does not exist");
}

}  // namespace
}  // namespace shardwise::testing::check_test

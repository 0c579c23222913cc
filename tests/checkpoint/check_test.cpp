// Every line that a broken checkpoint gets, and the ways to lay one out that are read.
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

/// A safetensors file in memory, to be changed and written back.
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
    file.read_whole(info, tensor.bytes.data());
    tensors[info.name] = std::move(tensor);
  }
  return tensors;
}

void write(const std::string& path, const File& tensors) {
  fs::remove(path);
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  const auto file = io::SafetensorsWriter::create(path, io::plan_file(specs));
  for (const auto& [name, tensor] : tensors) file.write_whole(file.layout().find(name), tensor.bytes.data());
}

class Check : public ::testing::Test {
 protected:
  Check() : whole_(whole_state(config_, at::kBFloat16, /*seed=*/1)), directory_(dir_ / "step-1") {
    save_whole(dir_.path(), config_, whole_, /*ranks=*/1, /*step=*/1);
  }

  /// What is said once `change` was made to one of the files; by every rank's load as by the check.
  std::string said_after(const std::string& file, const std::function<void(File&)>& change) const {
    File tensors = read(directory_ + "/" + file);
    change(tensors);
    write(directory_ + "/" + file, tensors);
    const std::string text = error_text([&] { checkpoint::check(directory_, /*needs_state=*/true); });
    RankState rank(config_, comm::Group(), whole_);
    if (file == "model.safetensors") {
      loaded_ = error_text([&] { checkpoint::load_weights(directory_, rank.weights); });
    } else {
      EXPECT_NO_THROW(checkpoint::check(directory_, /*needs_state=*/false));
      loaded_ = error_text([&] { checkpoint::load_state(directory_, rank.state, rank.weights); });
    }
    return text;
  }

  const model::Config config_ = uneven_config();
  const WholeState whole_;
  const TemporaryDirectory dir_;
  const std::string directory_;
  mutable std::string loaded_;
  const std::string kQ = "model.layers.1.self_attn.q_proj.weight";
};

TEST_F(Check, MissingWeight) {
  const std::string text = said_after("model.safetensors", [&](File& file) { file.erase(kQ); });
  EXPECT_EQ(text, directory_ + ": must hold the tensor \"" + kQ + "\"; got none of that name");
  EXPECT_EQ(loaded_, text);
}

TEST_F(Check, WeightOfAnotherShape) {
  const std::string text = said_after("model.safetensors", [&](File& file) { file[kQ].shape = {12, 24}; });
  EXPECT_EQ(text, directory_ + "/model.safetensors: " + kQ + " must have the shape [24, 12]; got [12, 24]");
  EXPECT_EQ(loaded_, text);
}

TEST_F(Check, WeightOfAnotherType) {
  const std::string text =
      said_after("model.safetensors", [&](File& file) { file[kQ].dtype = io::Dtype::I16; });
  EXPECT_EQ(text, directory_ + "/model.safetensors: " + kQ + " must be F32, BF16, F16 or F64; got I16");
  EXPECT_EQ(loaded_, text);
}

TEST_F(Check, WeightThatTheConfigHasNoPlaceFor) {
  File file = read(directory_ + "/model.safetensors");
  file["model.layers.2.input_layernorm.weight"] = file["model.norm.weight"];
  write(directory_ + "/model.safetensors", file);
  EXPECT_EQ(error_text([&] { checkpoint::check(directory_, false); }),
            directory_ +
                "/model.safetensors: must hold only tensors that config.json has a place for; got "
                "model.layers.2.input_layernorm.weight");
}

TEST_F(Check, TensorsOfOlderExportersAreLeftAlone) {
  File file = read(directory_ + "/model.safetensors");
  file["model.layers.0.self_attn.rotary_emb.inv_freq"] = file["model.norm.weight"];
  write(directory_ + "/model.safetensors", file);
  EXPECT_NO_THROW(checkpoint::check(directory_, true));
}

TEST_F(Check, HeadMayBeMissingOnlyWhenTied) {
  File file = read(directory_ + "/model.safetensors");
  const Tensor head = file.extract("lm_head.weight").mapped();
  write(directory_ + "/model.safetensors", file);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::check(directory_, false); }), "lm_head.weight");
  model::Config tied = config_;
  tied.tie_word_embeddings = true;
  dir_.put("step-1/config.json", model::to_json(tied));
  EXPECT_NO_THROW(checkpoint::check(directory_, false));
  file["lm_head.weight"] = head;  // a copy that some exporters write
  write(directory_ + "/model.safetensors", file);
  EXPECT_NO_THROW(checkpoint::check(directory_, false));
}

TEST_F(Check, TruncatedWeights) {
  const std::string path = directory_ + "/model.safetensors";
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::check(directory_, false); }), path);
  RankState rank(config_, comm::Group(), whole_);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::load_weights(directory_, rank.weights); }), path);
}

TEST_F(Check, NoWeightsOrNoConfig) {
  fs::rename(directory_ + "/model.safetensors", directory_ + "/weights");
  EXPECT_EQ(error_text([&] { checkpoint::check(directory_, false); }),
            directory_ + ": must hold model.safetensors or model.safetensors.index.json; got neither");
  fs::remove(directory_ + "/config.json");
  EXPECT_PRED2(contains, error_text([&] { checkpoint::check(directory_, false); }),
               directory_ + "/config.json");
}

TEST_F(Check, NoOptimizerState) {
  fs::remove(directory_ + "/optimizer.safetensors");
  EXPECT_NO_THROW(checkpoint::check(directory_, /*needs_state=*/false));
  const std::string line =
      directory_ +
      ": must hold optimizer.safetensors to be resumed; got none; --init takes the weights alone";
  EXPECT_EQ(error_text([&] { checkpoint::check(directory_, true); }), line);
  RankState rank(config_, comm::Group(), whole_);
  EXPECT_EQ(error_text([&] { checkpoint::load_state(directory_, rank.state, rank.weights); }), line);
}

TEST_F(Check, OptimizerTensorsMissingOfAnotherShapeOrType) {
  const std::string path = directory_ + "/optimizer.safetensors";
  const File good = read(path);
  for (const std::string what : {".master", ".exp_avg", ".exp_avg_sq"}) {
    const std::string name = kQ + what;
    EXPECT_EQ(said_after("optimizer.safetensors", [&](File& file) { file.erase(name); }),
              path + ": must hold the tensor \"" + name + "\"; got none of that name");
    EXPECT_PRED2(contains, loaded_, name);
    write(path, good);
    EXPECT_EQ(said_after("optimizer.safetensors", [&](File& file) { file[name].shape = {288}; }),
              path + ": " + name + " must have the shape [24, 12]; got [288]");
    EXPECT_PRED2(contains, loaded_, name);
    write(path, good);
    EXPECT_EQ(said_after("optimizer.safetensors", [&](File& file) { file[name].dtype = io::Dtype::I32; }),
              path + ": " + name + " must be F32 or F64; got I32");
    EXPECT_PRED2(contains, loaded_, name);
    write(path, good);
  }
}

/// Numbers that only reading finds, by one rank: the check of the headers passes, and every rank says the
/// same.
TEST_F(Check, NumbersThatAreNotFinite) {
  const std::string weights = directory_ + "/model.safetensors",
                    state = directory_ + "/optimizer.safetensors";
  File file = read(weights);
  file[kQ].bytes.replace(file[kQ].bytes.size() - 2, 2, "\x80\xff", 2);  // the last row's, -inf in bf16
  write(weights, file);
  File moments = read(state);
  moments[kQ + ".exp_avg"].bytes.replace(0, 4, "\x00\x00\xc0\xff", 4);  // the first row's, NaN
  write(state, moments);
  EXPECT_NO_THROW(checkpoint::check(directory_, /*needs_state=*/true));
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const comm::Group& group) {
      RankState rank(config_, group, whole_);
      EXPECT_EQ(
          error_text<base::CollectiveError>([&] { checkpoint::load_weights(directory_, rank.weights); }),
          weights + ": " + kQ + " must hold finite numbers; got -inf");
      EXPECT_EQ(error_text<base::CollectiveError>(
                    [&] { checkpoint::load_state(directory_, rank.state, rank.weights); }),
                state + ": " + kQ + ".exp_avg must hold finite numbers; got nan");
    });
  }
}

TEST_F(Check, Progress) {
  const std::string path = directory_ + "/optimizer.safetensors";
  const File good = read(path);
  for (const std::string name : {"progress.step", "progress.sequences", "progress.seq_len"}) {
    EXPECT_EQ(said_after("optimizer.safetensors", [&](File& file) { file.erase(name); }),
              path + ": must hold the tensor \"" + name + "\"; got none of that name");
    write(path, good);
    EXPECT_EQ(said_after("optimizer.safetensors", [&](File& file) { file[name].shape = {1}; }),
              path + ": " + name + " must have the shape []; got [1]");
    write(path, good);
    EXPECT_EQ(said_after("optimizer.safetensors", [&](File& file) { file[name].dtype = io::Dtype::U64; }),
              path + ": " + name + " must be I64; got U64");
    write(path, good);
    EXPECT_EQ(
        said_after("optimizer.safetensors", [&](File& file) { file[name].bytes = std::string(8, '\xff'); }),
        path + ": " + name + " must not be negative; got -1");
    write(path, good);
  }
}

TEST_F(Check, ResumedOnlyInTheDtypeItWasSavedIn) {
  RankState fp32(config_, comm::Group(), whole_state(config_, at::kFloat, 1));
  EXPECT_EQ(
      error_text([&] { checkpoint::load_state(directory_, fp32.state, fp32.weights); }),
      directory_ +
          "/optimizer.safetensors: must be resumed in the dtype that it was saved in; got Float but fp32 "
          "masters");
  save_whole(dir_.path(), config_, whole_state(config_, at::kFloat, 1), /*ranks=*/1, /*step=*/2);
  RankState bf16(config_, comm::Group(), whole_);
  EXPECT_EQ(
      error_text([&] { checkpoint::load_state(dir_ / "step-2", bf16.state, bf16.weights); }),
      dir_ /
          "step-2/optimizer.safetensors: must be resumed in the dtype that it was saved in; got BFloat16 and "
          "no fp32 masters");
}

TEST_F(Check, SeveralFilesByTheirIndex) {
  const File whole = read(directory_ + "/model.safetensors");
  const std::array<std::string, 2> names = {"model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors"};
  std::array<File, 2> halves;
  nlohmann::json index;
  for (const auto& [name, tensor] : whole) {
    const size_t half = index["weight_map"].size() % 2;
    halves[half][name] = tensor;
    index["weight_map"][name] = names[half];
  }
  for (const size_t half : {0, 1}) write(directory_ + "/" + names[half], halves[half]);
  fs::remove(directory_ + "/model.safetensors");
  dir_.put("step-1/model.safetensors.index.json", index.dump());
  EXPECT_NO_THROW(checkpoint::check(directory_, true));
  on_ranks(2, [&](const comm::Group& group) {
    RankState rank(config_, group, whole_);
    fill_(rank, whole_);
    for (const nn::UsedParameter& role : rank.weights.roles()) role.parameter->value.detach().fill_(-1);
    checkpoint::load_weights(directory_, rank.weights);
    EXPECT_EQ(differing(rank, whole_), std::vector<std::string>{});
  });
}

TEST_F(Check, ResolveTakesTheDirectoryOrTheOneAboveIt) {
  EXPECT_EQ(checkpoint::resolve(directory_), directory_);
  EXPECT_EQ(checkpoint::resolve(dir_.path()), directory_);
  EXPECT_EQ(checkpoint::resolve(dir_ / "latest"), dir_ / "latest");
}

TEST_F(Check, ResolveSaysWhatItFound) {
  const auto said = [](const fs::path& path) { return error_text([&] { checkpoint::resolve(path); }); };
  const std::string rule = ": must hold a config.json or a link latest to a directory that does; got ";
  EXPECT_EQ(said(dir_ / "none"), "checkpoint " + dir_ / "none" + rule + "nothing there");
  EXPECT_EQ(said(dir_.put("file", "")), "checkpoint " + dir_ / "file" + rule + "no directory");
  fs::create_directory(dir_ / "empty");
  EXPECT_EQ(said(dir_ / "empty"), "checkpoint " + dir_ / "empty" + rule + "a directory with neither");
  fs::remove(directory_ + "/config.json");
  EXPECT_EQ(said(dir_.path()), "checkpoint " + dir_.path() + rule + "a link to a directory without one");
  fs::remove_all(directory_);
  EXPECT_EQ(said(dir_.path()), "checkpoint " + dir_.path() + rule + "a link to a directory that is gone");
}

}  // namespace
}  // namespace shardwise::testing::check_test

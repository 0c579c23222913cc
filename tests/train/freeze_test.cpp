#include "shardwise/config/freeze.h"

#include "shardwise/io/safetensors.h"
#include "tests/support/error_text.h"
#include "tests/train/runs.h"

namespace shardwise::train::freeze_test {
namespace {

using testing::run_job;
using testing::Scratch;
using testing::small_byte_config;
using testing::small_options;
using Names = std::set<std::string>;

TEST(Freeze, GlobsMatchHuggingFaceNames) {
  const config::Frozen frozen = config::frozen_by(
      "train", {"model.layers.1.mlp.*", "*.0.self_attn.o_proj.weight"}, small_byte_config());
  EXPECT_EQ(frozen.parameters,
            (Names{"model.layers.1.mlp.gate_up_proj.weight", "model.layers.1.mlp.down_proj.weight",
                   "model.layers.0.self_attn.o_proj.weight"}));
  EXPECT_EQ(frozen.tensors,
            (Names{"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
                   "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.o_proj.weight"}));
  EXPECT_TRUE(config::frozen_by("train", {}, small_byte_config()).parameters.empty());
  EXPECT_EQ(config::frozen_by("train", {"*.[0-9].*.?_proj.weight"}, small_byte_config()).parameters.size(),
            4u);
}

TEST(Freeze, TiedHeadIsFrozenWithTheEmbedding) {
  config::Config tied = small_byte_config();
  tied.tie_word_embeddings = true;
  EXPECT_EQ(config::frozen_by("train", {"*embed_tokens*"}, tied).parameters,
            Names{"model.embed_tokens.weight"});
  EXPECT_THROW(config::frozen_by("train", {"lm_head.weight"}, tied), c10::ValueError);
  EXPECT_EQ(config::frozen_by("train", {"lm_head.weight"}, small_byte_config()).parameters,
            Names{"lm_head.weight"});
}

TEST(Freeze, RejectsInvalidGlobs) {
  const auto error = [](const std::vector<std::string>& globs) {
    return test::error_text([&] { config::frozen_by("train", globs, small_byte_config()); });
  };
  EXPECT_EQ(error({"*embed*", "model.layers.7.*"}),
            "train: --freeze must match tensors of the model, such as model.embed_tokens.weight; got "
            "model.layers.7.*, which matches no tensor");
  EXPECT_PRED2(test::contains, error({std::string(10'000, 'x')}), "xxx..., which matches no tensor");
  EXPECT_EQ(error({"model.layers.0.self_attn.[qk]_proj.weight"}),
            "train: --freeze must match all or none of model.layers.0.self_attn.q_proj.weight, "
            "model.layers.0.self_attn.k_proj.weight, model.layers.0.self_attn.v_proj.weight, which are one "
            "fused parameter; got only model.layers.0.self_attn.q_proj.weight, "
            "model.layers.0.self_attn.k_proj.weight");
  EXPECT_EQ(error({"*"}), "train: --freeze must not match all tensors; got all 21 tensors");
}

TrainOptions freezing(const Scratch& scratch, const std::string& save) {
  TrainOptions options = small_options(scratch);
  options.freeze = {"model.embed_tokens.weight", "*.1.*norm*", "*.0.self_attn.*"};
  options.save = scratch / save;
  return options;
}

bool is_frozen(const std::string& name) {
  return config::frozen_by("train", {"model.embed_tokens.weight", "*.1.*norm*", "*.0.self_attn.*"},
                           small_byte_config())
      .tensors.contains(name);
}

/// Returns the bytes of every tensor in a file.
std::map<std::string, std::string> tensors_of(const std::string& path) {
  const io::SafetensorsFile file(path);
  std::map<std::string, std::string> tensors;
  for (const io::TensorInfo& info : file.tensors()) {
    std::string& bytes = tensors[info.name];
    bytes.resize(static_cast<size_t>(info.bytes()));
    file.read_tensor(info, bytes.data());
  }
  return tensors;
}

TEST(Freeze, KeepsFrozenTensorsAndTrainsTheOthersAtEveryTpSize) {
  const Scratch scratch;
  TrainOptions options = freezing(scratch, "one");
  options.steps = 1;
  options.warmup = 0;
  options.lr = 1e-30;  // the initial weights
  run_job(options);
  const auto initial = tensors_of(scratch / "one/step-1/model.safetensors");
  std::vector<double> reference;
  for (const int64_t tp : {1, 2, 3}) {
    for (const bool sequence_parallel : {true, false}) {
      options = freezing(scratch, "tp" + std::to_string(tp) + (sequence_parallel ? "sp" : ""));
      options.tp = tp;
      options.sequence_parallel = sequence_parallel;
      const std::vector<double> losses = run_job(options).losses();
      if (reference.empty()) reference = losses;
      testing::expect_close(losses, reference);
      for (const auto& [name, bytes] : tensors_of(*options.save + "/step-6/model.safetensors"))
        EXPECT_EQ(bytes == initial.at(name), is_frozen(name)) << name;
      for (const auto& [name, bytes] : tensors_of(*options.save + "/step-6/optimizer.safetensors"))
        EXPECT_FALSE(is_frozen(name.substr(0, name.rfind('.')))) << name;
    }
  }
}

TEST(Freeze, ResumedRunHasTheSameLosses) {
  const Scratch scratch;
  for (const char* dtype : {"fp32", "bf16"}) {
    SCOPED_TRACE(dtype);
    TrainOptions options = freezing(scratch, std::string("full-") + dtype);
    options.dtype = dtype;
    const std::vector<double> full_run = run_job(options).losses();
    options.save = scratch / (std::string("resumed-") + dtype);
    options.stop_after = 3;
    run_job(options);
    options.stop_after = {};
    options.resume = options.save;
    const std::vector<double> second = run_job(options).losses();
    EXPECT_EQ(second, std::vector<double>(full_run.begin() + 3, full_run.end()));
  }
}

TEST(Freeze, ResumedRunMayFreezeMoreButNotLess) {
  const Scratch scratch;
  TrainOptions options = freezing(scratch, "saved");
  options.stop_after = 3;
  run_job(options);
  options.stop_after = 4;
  options.resume = options.save;
  options.freeze.push_back("lm_head.weight");
  EXPECT_NO_THROW(run_job(options));
  options.stop_after = {};
  options.freeze = {"lm_head.weight"};
  const std::string error = test::error_text([&] { const Job job(options); });
  EXPECT_NE(error.find("model.embed_tokens.weight.exp_avg"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace shardwise::train::freeze_test

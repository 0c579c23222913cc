// The files that a run copies from other directories into its checkpoints: a link in a directory from a
// stranger must not add a file of the user's to them.
#include <filesystem>
#include <fstream>

#include "tests/support/error_text.h"
#include "tests/text/sentencepiece_writer.h"
#include "tests/train/runs.h"

namespace shardwise::testing::copied_files_test {
namespace {

namespace fs = std::filesystem;
using test::contains, test::error_text, test::integer_field;
using train::Job;

/// A tokenizer.model of the small model's vocabulary: the bytes and three special tokens.
std::string tokenizer_model() {
  return test::pieces_field(test::pieces_with_bytes({})) +
         test::trainer_field(integer_field(3, 2) + integer_field(35, 1));
}

class CopiedFiles : public ::testing::Test {
 protected:
  CopiedFiles() { scratch_.put("private/key", "secret"); }

  /// Replaces `file`, or adds it, by a link to a copy of `text` outside of the model's directory.
  void link(const std::string& file, const std::string& text) const {
    fs::remove(scratch_ / file);
    fs::create_symlink(scratch_.put("private/" + fs::path(file).filename().string(), text), scratch_ / file);
  }
  void expect_refused(const std::string& file) const {
    const std::string error = error_text([&] { Job job(options_); });
    EXPECT_PRED2(contains, error, file + ": a file that is copied with a model must not be a link out");
  }

  const Scratch scratch_;
  train::TrainOptions options_ = small_options(scratch_);
};

TEST_F(CopiedFiles, OfTheTokenizerAreNoLinksOutOfItsDirectory) {
  scratch_.put("tokenizer/tokenizer.model", tokenizer_model());
  for (const std::string& name : {scratch_ / "tokenizer", scratch_ / "tokenizer/tokenizer.model"}) {
    options_.tokenizer = name;
    EXPECT_EQ(Job(options_).auxiliary_files().at("tokenizer.model"), tokenizer_model());
    link("tokenizer/merges.txt", "secret");
    expect_refused("tokenizer/merges.txt");
    fs::remove(scratch_ / "tokenizer/merges.txt");
    link("tokenizer/tokenizer.model", tokenizer_model());
    expect_refused("tokenizer/tokenizer.model");
    fs::remove(scratch_ / "tokenizer/tokenizer.model");
    scratch_.put("tokenizer/tokenizer.model", tokenizer_model());
  }
}

TEST_F(CopiedFiles, OfTheInitialModelAreNoLinksOutOfItsDirectory) {
  train::TrainOptions first = options_;
  first.save = scratch_ / "first";
  first.steps = first.warmup.emplace(1);
  run_job(first);
  options_.model_config.reset();
  options_.init = scratch_ / "first";
  scratch_.put("first/step-1/tokenizer.model", tokenizer_model());
  scratch_.put("first/step-1/generation_config.json", "{}");
  EXPECT_EQ(Job(options_).auxiliary_files().at("generation_config.json"), "{}");
  for (const auto& [name, text] : {std::pair("generation_config.json", std::string("{}")),
                                   {"special_tokens_map.json", "{}"},
                                   {"tokenizer.model", tokenizer_model()}}) {
    const std::string file = std::string("first/step-1/") + name;
    link(file, text);
    expect_refused(name);
    fs::remove(scratch_ / file);
    scratch_.put(file, text);
  }
}

TEST_F(CopiedFiles, OfTheResumedCheckpointAreNoLinksOutOfItsDirectory) {
  options_.save = scratch_ / "first";
  options_.stop_after = 1;
  run_job(options_);
  options_.save.reset();
  options_.stop_after.reset();
  options_.resume = scratch_ / "first";
  EXPECT_NO_THROW(Job job(options_));
  link("first/step-1/unnamed_tokenizer.json", "{}");
  expect_refused("unnamed_tokenizer.json");
}

}  // namespace
}  // namespace shardwise::testing::copied_files_test

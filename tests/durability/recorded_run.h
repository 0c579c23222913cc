// Fixture: a tree of files in which programs are run and recorded.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/durability/order.h"
#include "tests/durability/replay.h"
#include "tests/support/extent.h"
#include "tests/train/runs.h"

namespace shardwise::testing {

/// Small enough that thousands of states of it can be compared.
inline config::Config tiny_byte_config() {
  config::Config config = small_byte_config();
  config.hidden_size = 12;
  config.intermediate_size = 40;  // quantize packs four values in a word
  config.num_hidden_layers = 1;
  config.tie_word_embeddings = true;
  return config;
}

class RecordedRun : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;
  static constexpr const char* kSaved = "runs/saved";  // in the tree; --save makes both directories

  RecordedRun() {
    scratch_.put("text", sample_text());
    scratch_.put("config.json", config::to_json(tiny_byte_config()));
    std::filesystem::create_directory(tree_);
  }

  Words training(int tp, int steps, const Words& more = {}) const {
    Words options{"--stop-after", std::to_string(steps), "--tp", std::to_string(tp)};
    options.insert(options.end(), more.begin(), more.end());
    return training_command(scratch_, 9, options);
  }
  /// A save after each step.
  Words saving(const std::string& directory, int keep) const {
    return {"--save", directory, "--save-every", "1", "--keep", std::to_string(keep)};
  }

  /// Runs a program; expects a right order, and that the recorder has seen every change of the tree.
  void run(const Words& argv) {
    before_ = tree_at(tree_);
    operations_ = record(argv, tree_);
    EXPECT_EQ(order_violations(before_, operations_), Words{});
    Disk disk(before_);
    for (const Operation& operation : operations_) disk.apply(operation);
    EXPECT_TRUE(disk.after(kProcessKill) == tree_at(tree_)) << "the recorder has missed a change";
  }
  Replay replay(const std::string& directory) const { return {before_, operations_, directory}; }

  const Scratch scratch_;
  const std::string tree_ = scratch_ / "tree";
  Tree before_;            // the tree before the program
  Operations operations_;  // the program's
};

}  // namespace shardwise::testing

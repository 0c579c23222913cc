// A head in the file of a model that ties it to the embedding: equal to it, or reported.
#include "shardwise/checkpoint/tied_head.h"

#include <gtest/gtest.h>

#include <fstream>

#include "shardwise/checkpoint/shard.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"

namespace shardwise::testing::tied_head_test {
namespace {

using test::contains;

// More than two of the blocks of 1 MiB in which the values are compared, the last one shorter.
constexpr int64_t kRows = 700, kWidth = 1000;

std::string warnings_of(const std::filesystem::path& directory) {
  ::testing::internal::CaptureStderr();
  checkpoint::warn_of_unused_head(directory, "test");
  return ::testing::internal::GetCapturedStderr();
}

class TiedHead : public ::testing::Test {
 protected:
  TiedHead() {
    config::Config config = uneven_config(/*is_tied=*/true);
    config.vocab_size = kRows;
    config.hidden_size = kWidth;
    dir_.put("config.json", config::to_json(config));
    std::string bytes(size_t(kRows * kWidth * 4), '\0');
    for (size_t i = 0; i < bytes.size(); i += 7) bytes[i] = char(i);
    tensors_["model.embed_tokens.weight"] = tensors_["lm_head.weight"] = {"F32", {kRows, kWidth}, bytes};
  }
  Stored& head() { return tensors_.at("lm_head.weight"); }
  std::string warnings() const {
    std::ofstream(dir_ / "model.safetensors", std::ios::binary) << safetensors_of(tensors_);
    return warnings_of(dir_.path());
  }

  const TemporaryDirectory dir_;
  StoredTensors tensors_;
};

TEST_F(TiedHead, ThatEqualsTheEmbeddingIsNoWarning) {
  EXPECT_EQ(warnings(), "");
  tensors_.erase("lm_head.weight");
  EXPECT_EQ(warnings(), "");
}

TEST_F(TiedHead, ThatDiffersInAnyByteIsNamed) {
  for (const size_t at : {size_t{0}, size_t{1} << 20, head().bytes.size() - 1}) {
    const Stored equal = head();
    head().bytes[at] ^= 1;
    EXPECT_PRED2(contains, warnings(), "test: lm_head.weight should equal model.embed_tokens.weight in ")
        << at;
    head() = equal;
  }
}

TEST_F(TiedHead, OfAnotherDtypeOrShapeIsNamed) {
  const Stored equal = head();
  head().dtype = "I32";
  EXPECT_PRED2(contains, warnings(), "got another dtype, shape or value");
  head() = equal;
  head().shape = {kRows / 2, kWidth * 2};
  EXPECT_PRED2(contains, warnings(), "got another dtype, shape or value");
}

// The embedding's rows are in three files then, and the head is unsharded in the first.
TEST(ShardedTiedHead, IsComparedWithEveryShard) {
  const config::Config config = uneven_config(/*is_tied=*/true);
  const TemporaryDirectory dir;
  StoredTensors tensors = random_tensors(config, "F32");
  Stored& head = tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight");
  const auto warnings = [&](const std::string& name) {
    dir.put(name + "/config.json", config::to_json(config));
    dir.put(name + "/model.safetensors", safetensors_of(tensors));
    checkpoint::shard(dir / name, dir / (name + "-of-3"), /*tp=*/3, [](int64_t, int64_t) {});
    return warnings_of(dir / (name + "-of-3"));
  };
  EXPECT_EQ(warnings("equal"), "");
  head.bytes.back() ^= 1;
  EXPECT_PRED2(contains, warnings("another"), "got another dtype, shape or value");
}

}  // namespace
}  // namespace shardwise::testing::tied_head_test

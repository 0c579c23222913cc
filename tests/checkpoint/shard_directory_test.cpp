// The directory that shard writes: new, complete or removed, and with the model's auxiliary files.
#include <gtest/gtest.h>

#include <filesystem>

#include "shardwise/checkpoint/shard.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/stored_model.h"
#include "tests/support/error_text.h"
#include "tests/support/small_config.h"

namespace shardwise::testing::shard_directory_test {
namespace {

namespace fs = std::filesystem;
using test::contains, test::error_text;

void no_progress(int64_t, int64_t) {}

TEST(ShardDirectory, MustNotExistAndItsParentMustExist) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  const auto error_of = [&](const std::string& out) {
    return error_text([&] { checkpoint::shard(dir / "full", out, 2, no_progress); });
  };
  EXPECT_PRED2(contains, error_of(dir / "full/"),
               "shard: the output directory must not exist yet; got " + dir / "full");
  EXPECT_PRED2(contains, error_of(dir / "no/where"), "shard: the parent of the output directory must exist");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"full"});
}

TEST(ShardDirectory, IsRemovedOnCancellation) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  for (const int after : {0, 10, 1000}) {  // the last one throws when all is written
    int calls = 0;
    const auto cancel = [&](int64_t done, int64_t all) {
      EXPECT_LE(done, all);
      EXPECT_EQ(names_in(dir.path()).size(), 2);  // under a temporary name
      if (calls++ == after || done == all) throw std::runtime_error("enough");
    };
    EXPECT_THROW(checkpoint::shard(dir / "full", dir / "sharded", 2, cancel), std::runtime_error);
    EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"full"});
  }
}

// A model directory from an untrusted source could link to a file of the user's, which the copy would then
// contain.
TEST(ShardDirectory, RefusesLinksOutOfTheModel) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  dir.put("private/key", "secret");
  for (const std::string& target : {dir / "private/key", std::string("../private/key")}) {
    std::filesystem::create_symlink(target, dir / "full/merges.txt");
    const std::string error =
        error_text([&] { checkpoint::shard(dir / "full", dir / "sharded", 2, no_progress); });
    EXPECT_PRED2(contains, error,
                 "full/merges.txt: a file that is copied with a model must not be a link out");
    EXPECT_PRED2(contains, error, "got a link to " + dir / "private/key");
    EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"full", "private"}));
    std::filesystem::remove(dir / "full/merges.txt");
  }
}

TEST(ShardDirectory, FollowsLinksWithinTheModelAndItsCache) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  const std::string snapshot = "models--a--b/snapshots/1234/";
  dir.put(snapshot + "config.json", config::to_json(config));
  dir.put(snapshot + "model.safetensors", safetensors_of(random_tensors(config, "F32")));
  dir.put("models--a--b/blobs/5678", "merges");
  std::filesystem::create_symlink("../../blobs/5678", dir / (snapshot + "merges.txt"));
  dir.put(snapshot + "other.txt", "vocab");
  std::filesystem::create_symlink("other.txt", dir / (snapshot + "vocab.json"));
  checkpoint::shard(dir / snapshot, dir / "sharded", 2, no_progress);
  EXPECT_EQ(test::contents(dir / "sharded/merges.txt"), "merges");
  EXPECT_EQ(test::contents(dir / "sharded/vocab.json"), "vocab");
  const auto expect_link_refused = [&](const std::string& model, const std::string& target) {
    std::filesystem::remove(dir / (model + "/merges.txt"));
    std::filesystem::create_symlink(target, dir / (model + "/merges.txt"));
    const std::string error =
        error_text([&] { checkpoint::shard(dir / model, dir / "refused", 2, no_progress); });
    EXPECT_PRED2(contains, error, "must not be a link out of its directory") << model << " to " << target;
    EXPECT_FALSE(std::filesystem::exists(dir / "refused"));
  };
  // No cache, though a parent has one of its names: a home with a directory `snapshots`, and a cache without.
  dir.put("private/key", "secret");
  for (const std::string model : {"home/snapshots/model", "models--a--b/other/model"}) {
    std::filesystem::create_directories(dir / model);
    for (const std::string name : {"config.json", "model.safetensors"})
      std::filesystem::copy(dir / (snapshot + name), dir / (model + "/" + name));
    dir.put(std::filesystem::path(model).parent_path().parent_path() / "blobs/key", "secret");
    expect_link_refused(model, "../../../private/key");
    expect_link_refused(model, "../../blobs/key");
  }
  // In a cache only blobs may be linked to, and no blob may be a link.
  dir.put("models--a--b/refs/main", "1234");
  std::filesystem::create_symlink("../../private/key", dir / "models--a--b/blobs/9abc");
  for (const std::string target : {"../../refs/main", "../../blobs/9abc", "../../../private/key"})
    expect_link_refused("models--a--b/snapshots/1234", target);
}

TEST(ShardDirectory, ContainsAdditionalChatTemplates) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  const std::string templates = "/additional_chat_templates";
  dir.put("full" + templates + "/tool_use.jinja", "tools");
  dir.put("full" + templates + "/rag.jinja", "documents");
  dir.put("full" + templates + "/README.md", "no template");
  checkpoint::shard(dir / "full", dir / "sharded", 2, no_progress);
  checkpoint::merge(dir / "sharded", dir / "merged", no_progress);
  for (const std::string copy : {"sharded", "merged"}) {
    EXPECT_EQ(names_in(dir / (copy + templates)), (std::vector<std::string>{"rag.jinja", "tool_use.jinja"}));
    EXPECT_EQ(test::contents(dir / (copy + templates + "/tool_use.jinja")), "tools");
  }
  dir.put("private/key.jinja", "secret");
  fs::create_symlink("../../private/key.jinja", dir / ("full" + templates + "/key.jinja"));
  EXPECT_PRED2(contains, error_text([&] { checkpoint::shard(dir / "full", dir / "out", 2, no_progress); }),
               "must not be a link out");
}

TEST(ShardDirectory, RefusesLongAuxiliaryFiles) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  fs::resize_file(dir.put("full/merges.txt", ""), (64 << 20) + 1);
  EXPECT_PRED2(contains, error_text([&] { checkpoint::shard(dir / "full", dir / "out", 2, no_progress); }),
               "merges.txt: must be at most 67108864 bytes; got 67108865");
  EXPECT_EQ(names_in(dir.path()), std::vector<std::string>{"full"});
}

TEST(ShardDirectory, RemovesStaleTemporaries) {
  const TemporaryDirectory dir;
  const config::Config config = uneven_config();
  dir.put("full/config.json", config::to_json(config));
  dir.put("full/model.safetensors", safetensors_of(random_tensors(config, "F32")));
  dir.put(".sharded.tmp-123/config.json", "half");
  dir.put(".sharded2.tmp-123/config.json", "another's");
  checkpoint::shard(dir / "full", dir / "sharded", 2, no_progress);
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{".sharded2.tmp-123", "full", "sharded"}));
}

}  // namespace
}  // namespace shardwise::testing::shard_directory_test

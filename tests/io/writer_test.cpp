#include "shardwise/io/writer.h"

#include <gtest/gtest.h>

#include "shardwise/io/safetensors.h"
#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::io::writer_test {
namespace {

using test::contains, test::contents, test::error_text;

TEST(SafetensorsWriter, WritesTheFormatByteForByte) {
  const test::TemporaryDirectory directory;
  const FileLayout layout = plan_file({{"b", Dtype::U8, {2}}, {"a", Dtype::U8, {1, 1}}}, {{"format", "pt"}});
  const SafetensorsWriter writer = SafetensorsWriter::create(directory / "f", layout);
  writer.write_tensor(layout.find("a"), "3");
  writer.write(layout.find("b"), 1, 1, "2");
  writer.write(layout.find("b"), 0, 1, "1");
  writer.sync();
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
      R"("a":{"dtype":"U8","shape":[1,1],"data_offsets":[2,3]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  const std::string length = std::string(1, static_cast<char>(padded.size())) + std::string(7, '\0');
  EXPECT_EQ(contents(directory / "f"), length + padded + "123");
}

TEST(SafetensorsWriter, WritesAFileWithoutTensors) {
  const test::TemporaryDirectory directory;
  SafetensorsWriter::create(directory / "f", plan_file({}));
  EXPECT_TRUE(SafetensorsFile(directory / "f").tensors().empty());
}

TEST(SafetensorsWriter, DoesNotReplaceAFile) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("f", "old");
  const std::string text =
      error_text<base::FileError>([&] { SafetensorsWriter::create(path, plan_file({})); });
  EXPECT_PRED2(contains, text, "create " + path);
  EXPECT_EQ(contents(path), "old");
}

TEST(SafetensorsWriter, RemovesTheFileIfTheDiskIsFull) {
  const test::TemporaryDirectory directory;
  const FileLayout layout = plan_file({{"a", Dtype::U8, {int64_t{1} << 62}}});
  EXPECT_PRED2(contains,
               error_text<base::FileError>([&] { SafetensorsWriter::create(directory / "f", layout); }),
               directory / "f");
  EXPECT_FALSE(base::exists(directory / "f"));
}

TEST(SafetensorsWriter, OpensOnlyFilesWithTheSameLayout) {
  const test::TemporaryDirectory directory;
  const FileLayout layout = plan_file({{"a", Dtype::U8, {3}}});
  EXPECT_PRED2(contains,
               error_text<base::FileError>([&] { SafetensorsWriter::open(directory / "f", layout); }),
               "No such file");
  SafetensorsWriter::create(directory / "f", layout);
  EXPECT_EQ(SafetensorsWriter::open(directory / "f", layout).path(), directory / "f");
  const FileLayout other = plan_file({{"a", Dtype::U8, {4}}});
  EXPECT_PRED2(contains,
               error_text<base::FileError>([&] { SafetensorsWriter::open(directory / "f", other); }),
               "must be " + std::to_string(other.total_bytes) + " bytes");
}

}  // namespace
}  // namespace shardwise::io::writer_test

#include "shardwise/io/safetensors.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::io::safetensors_test {
namespace {

using nlohmann::json;
using test::contains, test::error_text;

std::string length_of(const std::string& header) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes;
}

/// Returns a file of U8 tensors, written without our writer.
std::string file_of(const std::map<std::string, std::string>& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, bytes] : tensors) {
    header[name] = {{"dtype", "U8"},
                    {"shape", {bytes.size()}},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  return length_of(header.dump()) + header.dump() + data;
}

std::string read(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& tensor = file.find(name);
  std::string bytes(tensor.bytes(), '\0');
  file.read_tensor(tensor, bytes.data());
  return bytes;
}

std::string index_of(const json& weight_map) {
  return json{{"weight_map", weight_map}}.dump();
}

TEST(SafetensorsFile, ReadsTensorsAndByteRanges) {
  const test::TemporaryDirectory directory;
  const SafetensorsFile file(directory.put("f", file_of({{"a", "abc"}, {"b", ""}, {"c", "defgh"}})));
  EXPECT_EQ(read(file, "a"), "abc");
  EXPECT_EQ(read(file, "b"), "");
  EXPECT_EQ(read(file, "c"), "defgh");
  char part[2];
  file.read(file.find("c"), 3, 2, part);
  EXPECT_EQ(std::string(part, 2), "gh");
  EXPECT_TRUE(file.contains("a"));
  EXPECT_FALSE(file.contains("d"));
}

TEST(SafetensorsFile, CountsBytesRead) {
  const test::TemporaryDirectory directory;
  const std::string contents = file_of({{"a", "abc"}, {"c", "defgh"}});
  const int64_t header = static_cast<int64_t>(contents.size()) - 8;
  const SafetensorsFile file(directory.put("f", contents));
  EXPECT_EQ(file.bytes_read(), header);
  char part[3];
  file.read(file.find("c"), 3, 2, part);
  EXPECT_EQ(file.bytes_read(), header + 2);
  file.read_tensor(file.find("a"), part);
  EXPECT_EQ(file.bytes_read(), header + 5);
}

TEST(SafetensorsFile, NamesTheMissingTensorAndTheFile) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("f", file_of({{"a", "abc"}}));
  const SafetensorsFile file(path);
  EXPECT_EQ(error_text([&] { file.find("b"); }),
            path + ": must contain the tensor \"b\"; got none of that name");
}

TEST(SafetensorsFile, RejectsEveryTruncation) {
  const test::TemporaryDirectory directory;
  const std::string contents = file_of({{"a", "abc"}, {"c", "defgh"}});
  for (size_t bytes = 0; bytes < contents.size(); ++bytes) {
    const std::string path = directory.put("f", contents.substr(0, bytes));
    EXPECT_PRED2(contains, error_text([&] { SafetensorsFile file(path); }), path) << bytes;
  }
  EXPECT_PRED2(contains, error_text([&] { SafetensorsFile file(directory.put("f", contents + "x")); }),
               "must fill");
}

TEST(SafetensorsFile, ThrowsIfTheFileIsTruncatedAfterOpening) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("f", file_of({{"a", "abc"}}));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_PRED2(contains, error_text([&] { read(file, "a"); }), "truncated");
}

TEST(SafetensorsFile, NamesTheMissingFileOrDirectory) {
  const test::TemporaryDirectory directory;
  EXPECT_PRED2(contains, error_text([&] { SafetensorsFile file(directory / "none"); }), directory / "none");
  EXPECT_PRED2(contains, error_text([&] { SafetensorsFile file(directory.path()); }), "got a directory");
}

TEST(SafetensorsDirectory, ReadsTheSingleFile) {
  const test::TemporaryDirectory directory;
  directory.put("model.safetensors", file_of({{"b", "2"}, {"a", "1"}}));
  const SafetensorsDirectory model(directory.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read(*model.find("b").file, "b"), "2");
  EXPECT_EQ(model.find("b").tensor->name, "b");
  EXPECT_EQ(error_text([&] { model.find("c"); }),
            directory.path() + ": must contain the tensor \"c\"; got none of that name");
}

TEST(SafetensorsDirectory, ReadsTheFilesOfTheIndex) {
  const test::TemporaryDirectory directory;
  directory.put("1.safetensors", file_of({{"a", "1"}, {"c", "3"}}));
  directory.put("2.safetensors", file_of({{"b", "2"}}));
  directory.put("model.safetensors.index.json",
                index_of({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "1.safetensors"}}));
  const SafetensorsDirectory model(directory.path());
  EXPECT_EQ(model.names(), (std::vector<std::string>{"a", "b", "c"}));
  for (const auto& [name, bytes] : std::map<std::string, std::string>{{"a", "1"}, {"b", "2"}, {"c", "3"}}) {
    EXPECT_EQ(read(*model.find(name).file, name), bytes);
  }
}

TEST(SafetensorsDirectory, CountsHeadersAndIndex) {
  const test::TemporaryDirectory directory;
  const std::string first = file_of({{"a", "12345"}}), second = file_of({{"b", "2"}});
  const std::string index = index_of({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  directory.put("1.safetensors", first);
  directory.put("2.safetensors", second);
  directory.put("model.safetensors.index.json", index);
  const auto all = static_cast<int64_t>(first.size() + second.size() + index.size());
  const SafetensorsDirectory model(directory.path());
  EXPECT_EQ(model.bytes_read(), all - 5 - 1);
  read(*model.find("a").file, "a");
  EXPECT_EQ(model.bytes_read(), all - 1);
}

TEST(FilesOf, ReturnsTheFilesThatTheDirectoryReads) {
  const test::TemporaryDirectory directory;
  EXPECT_PRED2(contains, error_text([&] { files_of(directory.path()); }), "got neither");
  directory.put("other.safetensors", "none");
  const std::string index =
      directory.put("model.safetensors.index.json",
                    index_of({{"a", "2.safetensors"}, {"b", "1.safetensors"}, {"c", "2.safetensors"}}));
  EXPECT_EQ(files_of(directory.path()),
            (std::vector<std::string>{directory / "1.safetensors", directory / "2.safetensors", index}));
  const std::string single = directory.put("model.safetensors", file_of({{"a", "1"}}));
  EXPECT_EQ(files_of(directory.path()), std::vector<std::string>{single});
}

class WeightMap : public testing::Test {
 protected:
  std::string refusal(const std::string& index) {
    directory_.put("1.safetensors", file_of({{"a", "1"}, {"c", "3"}}));
    directory_.put("2.safetensors", file_of({{"b", "2"}}));
    directory_.put("model.safetensors.index.json", index);
    return error_text([&] { SafetensorsDirectory model(directory_.path()); });
  }
  const test::TemporaryDirectory directory_;
};

TEST_F(WeightMap, NamesMissingFiles) {
  EXPECT_PRED2(contains, refusal(index_of({{"a", "3.safetensors"}})), directory_ / "3.safetensors");
}

TEST_F(WeightMap, NamesTensorsMissingFromTheFile) {
  EXPECT_PRED2(contains,
               refusal(index_of({{"a", "1.safetensors"}, {"c", "1.safetensors"}, {"x", "2.safetensors"}})),
               "2.safetensors: must contain the tensor \"x\"");
}

TEST_F(WeightMap, NamesTensorsMissingFromTheIndex) {
  EXPECT_PRED2(contains, refusal(index_of({{"a", "1.safetensors"}})), "got \"c\" in 1.safetensors only");
}

TEST_F(WeightMap, RejectsTensorsInTwoFiles) {
  directory_.put("3.safetensors", file_of({{"a", "1"}, {"d", "4"}}));
  EXPECT_PRED2(contains,
               refusal(index_of({{"a", "1.safetensors"}, {"c", "1.safetensors"}, {"d", "3.safetensors"}})),
               "got \"a\" in 3.safetensors and 1.safetensors");
}

TEST_F(WeightMap, RejectsPathsOutsideTheDirectory) {
  for (const char* name : {"../1.safetensors", "/etc/passwd", "", "sub/1.safetensors", "a\nb"}) {
    EXPECT_PRED2(contains, refusal(index_of({{"a", name}})), "must map to file names");
  }
  EXPECT_PRED2(contains, refusal(index_of({{"a", 1}})), "must map to file names");
  EXPECT_LE(refusal(index_of({{"a", std::string(3000, 'x')}})).size(), 200u);
}

TEST_F(WeightMap, MustBeAJsonObject) {
  EXPECT_PRED2(contains, refusal("{"), "must be JSON");
  EXPECT_PRED2(contains, refusal("[]"), "must be a JSON object");
  EXPECT_PRED2(contains, refusal("{}"), "weight_map must be an object; got none");
  EXPECT_PRED2(contains, refusal(R"({"weight_map":[]})"), "got []");
  EXPECT_PRED2(contains, refusal(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
               "must not be duplicated");
}

TEST(SafetensorsDirectory, NamesTheExpectedFilesIfNeitherExists) {
  const test::TemporaryDirectory directory;
  EXPECT_PRED2(
      contains, error_text([&] { SafetensorsDirectory model(directory.path()); }),
      directory.path() + ": must contain model.safetensors or model.safetensors.index.json; got neither");
}

}  // namespace
}  // namespace shardwise::io::safetensors_test

#include "shardwise/text/token_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::token_file_test {
namespace {

using test::contains, test::error_text;

class TokenFiles : public ::testing::Test {
 protected:
  void write(int64_t vocab_size, const std::vector<std::vector<int64_t>>& texts) {
    TokenFileWriter writer(path_, vocab_size);
    for (const auto& ids : texts) writer.append(ids);
    writer.finish();
  }
  std::vector<int64_t> read_all() const {
    const TokenFile file(path_);
    std::vector<int64_t> ids(file.size());
    file.read(0, ids);
    return ids;
  }

  test::TemporaryDirectory directory_;
  std::string path_ = directory_ / "ids";
};

TEST_F(TokenFiles, RoundTrip) {
  for (const int64_t vocab_size : {65536, 65537}) {
    write(vocab_size, {{1, 65535}, {}, {vocab_size - 1}});
    EXPECT_EQ(read_all(), (std::vector<int64_t>{1, 65535, vocab_size - 1}));
    const TokenFile file(path_);
    EXPECT_EQ(file.text_count(), 3);
    EXPECT_EQ(file.vocab_size(), vocab_size);
    EXPECT_EQ(std::filesystem::file_size(path_), vocab_size == 65536 ? 64u + 6 : 64u + 12);
    std::vector<int64_t> middle(1);
    file.read(1, middle);
    EXPECT_EQ(middle.front(), 65535);
  }
}

TEST_F(TokenFiles, UnfinishedWriteKeepsTheOldFile) {
  write(10, {{1, 2, 3}});
  {
    TokenFileWriter writer(path_, 10);
    writer.append(std::vector<int64_t>{4});
  }
  EXPECT_EQ(read_all(), (std::vector<int64_t>{1, 2, 3}));
  const auto count = std::distance(std::filesystem::directory_iterator(directory_.path()), {});
  EXPECT_EQ(count, 1);
}

TEST_F(TokenFiles, RejectInvalidFiles) {
  const auto expect_error = [&](const std::string& rule) {
    EXPECT_PRED2(contains, error_text([&] { read_all(); }), rule);
  };
  write(10, {{1, 2, 3}});
  std::filesystem::resize_file(path_, 69);
  expect_error("must have the number of ids in its header");
  std::filesystem::resize_file(path_, 63);
  expect_error("64 bytes of header");
  write(10, {{1, 2, 3}});
  std::vector<int64_t> four(4);
  EXPECT_PRED2(contains, error_text([&] { TokenFile(path_).read(0, four); }), "within its 3 tokens");
}

TEST_F(TokenFiles, RejectEachInvalidField) {
  write(10, {{1, 2, 3}});
  const std::string good = test::contents(path_);
  const auto expect_error = [&](size_t at, char byte, const std::string& rule) {
    std::string changed = good;
    changed[at] = byte;
    directory_.put("ids", changed);
    EXPECT_PRED2(contains, error_text([&] { read_all(); }), rule) << at;
  };
  const std::string another = "must be a token file of version 1";
  expect_error(/*magic*/ 7, 'x', another);
  expect_error(/*version*/ 8, 2, another);
  expect_error(/*bytes of an id*/ 12, 3, another);
  expect_error(/*count*/ 16, 4, "must have the number of ids in its header");
  expect_error(/*third id*/ 68, 30, "ids must be from 0 to below its vocab_size, 10; got 30");
  const std::string size = "the vocab_size of a token file must be from 1 to 2^32; got ";
  expect_error(/*vocab_size*/ 24, 0, size + "0");
  expect_error(/*vocab_size*/ 28, 1, size + "4294967306");
  expect_error(/*vocab_size*/ 31, '\x80', size + "9223372036854775818");
  expect_error(/*vocab_size*/ 24, 3, "ids must be from 0 to below its vocab_size, 3; got 3");
}

TEST_F(TokenFiles, RejectInvalidIds) {
  for (const int64_t vocab_size : {10, 100000}) {
    TokenFileWriter writer(path_, vocab_size);
    for (const int64_t id : {int64_t{-5}, vocab_size, int64_t{70000} * 65536}) {
      EXPECT_PRED2(contains, error_text([&] {
                     writer.append(std::vector<int64_t>{1, id});
                   }),
                   "got " + std::to_string(id));
    }
    writer.append(std::vector<int64_t>{2});
    writer.finish();
    EXPECT_EQ(read_all(), std::vector<int64_t>{2});
  }
}

}  // namespace
}  // namespace shardwise::text::token_file_test

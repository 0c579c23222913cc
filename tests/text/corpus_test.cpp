#include "shardwise/text/corpus.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::text::corpus_test {
namespace {

namespace fs = std::filesystem;
using test::contains, test::error_text;

std::string read(const Corpus& corpus, int64_t offset, int64_t length) {
  std::string bytes(length, '\0');
  corpus.read(offset, length, reinterpret_cast<uint8_t*>(bytes.data()));
  return bytes;
}

std::string all(const Corpus& corpus) {
  return read(corpus, 0, corpus.size());
}

int64_t descriptors() {
  return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
}

/// Returns the number of open files of this process whose path contains `part`.
int64_t open_files(const std::string& part) {
  int64_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code error;  // the descriptor of this iteration is closed
    count += contains(fs::read_symlink(entry.path(), error).string(), part);
  }
  return count;
}

TEST(Corpus, FilesKeepTheirOrder) {
  const test::TemporaryDirectory directory;
  const Corpus corpus({directory.put("b", "two"), directory.put("a", "one"), directory.put("b", "two")});
  EXPECT_EQ(corpus.size(), 9);
  EXPECT_EQ(all(corpus), "twoonetwo");
}

TEST(Corpus, DirectoriesAreReadRecursivelyAndSorted) {
  const test::TemporaryDirectory directory;
  directory.put("b/2", "4");
  directory.put("b/1", "3");
  directory.put("a", "1");
  directory.put("ab/x/y", "2");
  directory.put("c", "");
  EXPECT_EQ(all(Corpus({directory.path()})), "1234");
  EXPECT_EQ(all(Corpus({directory.path() + "/"})), "1234");
  EXPECT_EQ(Corpus({directory.path()}).file_count(), 4);
}

TEST(Corpus, SkipsHiddenEntriesOfDirectories) {
  const test::TemporaryDirectory directory;
  directory.put(".git/objects", "x");
  directory.put("a", "1");
  directory.put(".b", "2");
  EXPECT_EQ(all(Corpus({directory.path()})), "1");
  EXPECT_EQ(all(Corpus({directory / ".b"})), "2");
}

TEST(Corpus, FollowsLinksToFilesButNotToDirectories) {
  const test::TemporaryDirectory directory;
  directory.put("a/file", "1");
  fs::create_symlink("file", directory / "a/link");
  fs::create_directory_symlink("..", directory / "a/up");
  EXPECT_EQ(all(Corpus({directory / "a"})), "11");
  EXPECT_EQ(all(Corpus({directory / "a/up/a"})), "11");
}

TEST(Corpus, AcceptsAnyBytes) {
  const test::TemporaryDirectory directory;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  EXPECT_EQ(all(Corpus({directory.put("a", bytes)})), bytes);
}

TEST(Corpus, ReadsAcrossFiles) {
  const test::TemporaryDirectory directory;
  std::mt19937 random(7);
  std::string expected;
  std::vector<std::string> paths;
  for (int file = 0; file < 20; ++file) {
    std::string bytes(random() % 6000, '\0');  // below and above one page
    for (char& byte : bytes) byte = static_cast<char>(random());
    paths.push_back(directory.put(std::to_string(file), bytes));
    expected += bytes;
  }
  const Corpus corpus(paths);
  ASSERT_EQ(corpus.size(), static_cast<int64_t>(expected.size()));
  for (int i = 0; i < 500; ++i) {
    const size_t offset = random() % (expected.size() + 1),
                 length = random() % (expected.size() - offset + 1);
    ASSERT_EQ(read(corpus, offset, length), expected.substr(offset, length)) << offset << " " << length;
  }
}

TEST(Corpus, LimitsTheNumberOfOpenFiles) {
  const test::TemporaryDirectory directory;
  const int64_t files = static_cast<int64_t>(Corpus::kMaxOpenFiles) + 50;
  fs::create_directory(directory / "many");
  for (int64_t i = 0; i < files; ++i)
    std::ofstream(directory / ("many/" + std::to_string(100000 + i))) << i % 10;
  const int64_t before = descriptors();
  {
    const Corpus corpus({directory / "many"});
    EXPECT_EQ(descriptors(), before);
    for (int round = 0; round < 2; ++round) {
      const std::string text = all(corpus);
      for (int64_t i = 0; i < files; ++i) ASSERT_EQ(text[i], static_cast<char>('0' + i % 10)) << i;
    }
    EXPECT_EQ(open_files(directory.path()), static_cast<int64_t>(Corpus::kMaxOpenFiles));
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Corpus, ClosesTheLeastRecentlyReadFile) {
  const test::TemporaryDirectory directory;
  const int64_t files = static_cast<int64_t>(Corpus::kMaxOpenFiles) + 1;
  fs::create_directory(directory / "many");
  for (int64_t i = 0; i < files; ++i)
    std::ofstream(directory / ("many/" + std::to_string(100000 + i))) << "x";
  const Corpus corpus({directory / "many"});
  read(corpus, 0, files - 1);
  read(corpus, 0, 1);          // now the second file is the least recently read
  read(corpus, files - 1, 1);  // and is closed for the last
  EXPECT_EQ(open_files("many/100000"), 1);
  EXPECT_EQ(open_files("many/100001"), 0);
  EXPECT_EQ(open_files("many/" + std::to_string(100000 + files - 1)), 1);
}

TEST(Corpus, IsThreadSafe) {
  const test::TemporaryDirectory directory;
  std::string expected;
  for (int i = 0; i < 100; ++i) {
    const std::string bytes(10, static_cast<char>('a' + i % 26));
    directory.put(std::to_string(100 + i), bytes);
    expected += bytes;
  }
  const Corpus corpus({directory.path()});
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const int64_t offset = (i * 37 + t * 11) % 900;
        wrong[t] += read(corpus, offset, 100) != expected.substr(offset, 100);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Corpus, RejectsInvalidPaths) {
  const test::TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  directory.put("sub/a", "x");
  fs::create_symlink("nowhere", directory / "sub/dangling");
  directory.put("sub2/a", "x");
  ASSERT_EQ(::mkfifo((directory / "sub2/fifo").c_str(), 0600), 0);
  for (const std::string name : {"missing", "fifo", "sub"}) {
    EXPECT_PRED2(contains, error_text([&] { Corpus corpus({directory / name}); }), directory / name);
  }
  EXPECT_PRED2(contains, error_text([&] { Corpus corpus({directory / "sub"}); }), directory / "sub/dangling");
  EXPECT_PRED2(contains, error_text([&] { Corpus corpus({directory / "sub2"}); }), directory / "sub2/fifo");
  EXPECT_PRED2(contains, error_text([] { Corpus corpus({}); }), "at least one file or directory");
}

TEST(Corpus, RejectsEmptyPaths) {
  const test::TemporaryDirectory directory;
  fs::create_directories(directory / "empty/sub");
  EXPECT_PRED2(contains, error_text([&] { Corpus corpus({directory / "empty"}); }),
               "must contain at least one byte");
  EXPECT_PRED2(contains, error_text([&] { Corpus corpus({directory.put("none", "")}); }), directory / "none");
}

TEST(Corpus, RejectsReadsOutOfBounds) {
  const test::TemporaryDirectory directory;
  const Corpus corpus({directory.put("a", "abc")});
  EXPECT_EQ(read(corpus, 3, 0), "");
  for (const auto& [offset, length] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 4}, {3, 1}, {-1, 1}, {4, 0}}) {
    uint8_t bytes[4];
    EXPECT_PRED2(contains, error_text([&] { corpus.read(offset, length, bytes); }), "within its 3 bytes");
  }
  uint8_t byte;
  EXPECT_PRED2(contains, error_text([&] { corpus.read(1, INT64_MAX, &byte); }), "within its 3 bytes");
}

TEST(Corpus, NamesAChangedFile) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("a", "abc");
  const Corpus corpus({path});
  directory.put("a", "ab");
  EXPECT_PRED2(contains, error_text([&] { all(corpus); }), path + ": must not change");
}

TEST(Corpus, NamesAReplacedFileOfEqualSize) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("a", "abc");
  const Corpus corpus({path});
  fs::rename(directory.put("b", "xyz"), path);
  EXPECT_PRED2(contains, error_text([&] { all(corpus); }), path + ": must not change");
}

// Copying from the mapping without a check would raise SIGBUS.
TEST(Corpus, NamesATruncatedFile) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("a", std::string(100'000, 'a'));
  const Corpus corpus({path});
  EXPECT_EQ(read(corpus, 99'999, 1), "a");
  fs::resize_file(path, 5000);
  EXPECT_PRED2(contains, error_text([&] { read(corpus, 50'000, 10); }), "read " + path + ": must have");
  EXPECT_EQ(read(corpus, 4000, 1), "a");
}

TEST(Corpus, FingerprintChangesWithAFile) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("text/a", "abc");
  directory.put("text/b", "abc");
  const uint64_t before = Corpus({directory / "text"}).fingerprint();
  EXPECT_EQ(Corpus({directory / "text"}).fingerprint(), before);
  fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(1));
  EXPECT_NE(Corpus({directory / "text"}).fingerprint(), before);
}

}  // namespace
}  // namespace shardwise::text::corpus_test

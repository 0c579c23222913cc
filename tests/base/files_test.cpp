#include "shardwise/base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"

namespace shardwise::base::files_test {
namespace {

namespace fs = std::filesystem;
using test::contains, test::contents, test::error_text;

int64_t entries(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(File, WritesAndReadsAtOffsets) {
  const test::TemporaryFolder folder;
  const File file = File::create(folder / "a");
  file.allocate(6);
  file.write(4, 2, "ef");
  file.write(0, 4, "abcd");
  file.sync();
  EXPECT_EQ(contents(folder / "a"), "abcdef");
  char middle[3] = {};
  File::open_to_read(folder / "a").read(2, 3, middle);
  EXPECT_EQ(std::string(middle, 3), "cde");
}

TEST(Outputs, AreNewOrRegularFilesThemselves) {
  const test::TemporaryFolder folder;
  check_new_or_regular_file("--out", folder / "new");
  check_new_or_regular_file("--out", folder.put("old", ""));
  fs::create_symlink("old", folder / "link");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  for (const char* name : {"link", "fifo", "."}) {
    EXPECT_PRED2(contains, error_text([&] { check_new_or_regular_file("--out", folder / name); }),
                 "--out must be a regular file, or a new one; got " + folder / name);
  }
}

TEST(Outputs, AreNoInputs) {
  const test::TemporaryFolder folder;
  const std::string file = folder.put("in/file", ""), beside = folder.put("into", "");
  fs::create_symlink("in", folder / "linked");
  fs::create_hard_link(file, folder / "same");
  const auto check = [](const std::string& path, const std::vector<std::string>& inputs) {
    check_no_input("--out", path, inputs);
  };
  check(beside, {file, folder / "in", folder / "absent"});
  check(folder / "new", {file, folder / "in"});
  check(folder / "in/new", {file});
  check(folder / "..", {folder.path()});
  for (const std::string& path : {file, folder / "same", folder / "linked/file", folder / "in/../in/file"}) {
    EXPECT_PRED2(contains, error_text([&] { check(path, {beside, file}); }), "must not change what is read");
  }
  for (const char* path : {"in/new", "in/below/new", "linked/new", "linked"}) {
    EXPECT_PRED2(contains, error_text([&] { check(folder / path, {folder / "in"}); }),
                 "got " + folder / path);
  }
}

TEST(Outputs, AreTheSameByLinksToo) {
  const test::TemporaryFolder folder;
  const std::string file = folder.put("in/file", "");
  fs::create_symlink("in", folder / "linked");
  EXPECT_TRUE(is_same_file(file, folder / "linked/file"));
  EXPECT_TRUE(is_same_file(folder / "in/new", folder / "linked/./new"));
  EXPECT_FALSE(is_same_file(folder / "in/new", folder / "new"));
}

TEST(File, MovesWithoutClosing) {
  const test::TemporaryFolder folder;
  File one = File::create(folder / "one");
  File two = File::create(folder / "two");
  two = std::move(one);
  two.write(0, 1, "x");
  EXPECT_EQ(two.path(), folder / "one");
  EXPECT_EQ(contents(folder / "one"), "x");
}

TEST(File, RefusesToReadWhatIsNoRegularFile) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  fs::create_symlink("nowhere", folder / "dangling");
  for (const std::string name : {"missing", "fifo", "dangling", ""}) {
    EXPECT_PRED2(contains, error_text([&] { File::open_to_read(folder / name); }), folder / name);
  }
}

TEST(File, ReadingBeyondTheEndIsAnError) {
  const test::TemporaryFolder folder;
  const File file = File::open_to_read(folder.put("a", "abc"));
  char bytes[4];
  EXPECT_PRED2(contains, error_text([&] { file.read(1, 3, bytes); }), "truncated");
}

TEST(File, CreateNeverOverwrites) {
  const test::TemporaryFolder folder;
  const std::string path = folder.put("a", "old");
  try {
    File::create(path);
    FAIL() << "created twice";
  } catch (const FileError& error) {
    EXPECT_EQ(error.error_number(), EEXIST);
    EXPECT_EQ(error.path(), path);
  }
  EXPECT_EQ(contents(path), "old");
}

TEST(File, AFullDiskSaysSo) {
  const File full = File::open_to_write("/dev/full");
  const std::string text = error_text<FileError>([&] { full.write(0, 3, "abc"); });
  EXPECT_PRED2(contains, text, "write /dev/full: no room left");
}

TEST(File, AllocateTakesTheRoomAtOnce) {
  const test::TemporaryFolder folder;
  const int64_t bytes = 1 << 20;
  File::create(folder / "a").allocate(bytes);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, bytes);
  EXPECT_GE(status.st_blocks * 512, bytes);
}

TEST(File, AllocateBeyondAnyDiskIsAnError) {
  const test::TemporaryFolder folder;
  const File file = File::create(folder / "a");
  EXPECT_PRED2(contains, error_text<FileError>([&] { file.allocate(int64_t{1} << 62); }), folder / "a");
}

TEST(ReadText, RefusesMoreThanAsked) {
  const test::TemporaryFolder folder;
  const std::string path = folder.put("a", "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  EXPECT_PRED2(contains, error_text([&] { read_text(path, 4); }), "at most 4 bytes; got 5");
}

TEST(WriteText, ReplacesAndLeavesNothingElse) {
  const test::TemporaryFolder folder;
  write_text(folder / "a", "one");
  write_text(folder / "a", "two");
  EXPECT_EQ(contents(folder / "a"), "two");
  EXPECT_EQ(entries(folder.path()), 1);
}

TEST(WriteText, FailingKeepsTheOldAndLeavesNothingElse) {
  const test::TemporaryFolder folder;
  make_folders(folder / "a/b");  // a folder that is not empty cannot be replaced by a file
  EXPECT_PRED2(contains, error_text<FileError>([&] { write_text(folder / "a", "text"); }), folder / "a");
  EXPECT_EQ(entries(folder.path()), 1);
  EXPECT_TRUE(is_folder(folder / "a/b"));
}

TEST(Rename, MovesFolders) {
  const test::TemporaryFolder folder;
  folder.put("step.tmp/weights", "w");
  base::rename(folder / "step.tmp", folder / "step");
  EXPECT_EQ(contents(folder / "step/weights"), "w");
  EXPECT_FALSE(exists(folder / "step.tmp"));
}

TEST(FlipLink, PointsAtTheNewTarget) {
  const test::TemporaryFolder folder;
  folder.put("step-1/a", "1");
  folder.put("step-2/a", "2");
  flip_link(folder / "latest", "step-1");
  EXPECT_EQ(contents(folder / "latest/a"), "1");
  flip_link(folder / "latest", "step-2");
  EXPECT_EQ(contents(folder / "latest/a"), "2");
  EXPECT_EQ(fs::read_symlink(folder / "latest"), "step-2");
  EXPECT_EQ(entries(folder.path()), 3);
}

TEST(FlipLink, DoesNotReplaceAFolder) {
  const test::TemporaryFolder folder;
  folder.put("latest/a", "mine");
  EXPECT_PRED2(contains, error_text<FileError>([&] { flip_link(folder / "latest", "step-1"); }), "latest");
  EXPECT_EQ(contents(folder / "latest/a"), "mine");
  EXPECT_EQ(entries(folder.path()), 1);
}

TEST(CheckWritableFolder, MakesItAndLeavesItEmpty) {
  const test::TemporaryFolder folder;
  check_writable_folder(folder / "a/b");
  EXPECT_TRUE(is_folder(folder / "a/b"));
  EXPECT_EQ(entries(folder / "a/b"), 0);
}

TEST(CheckWritableFolder, NamesTheFolderItCannotUse) {
  const test::TemporaryFolder folder;
  folder.put("file", "x");
  EXPECT_PRED2(contains, error_text([&] { check_writable_folder(folder / "file/b"); }),
               "save folder " + (folder / "file/b"));
  EXPECT_PRED2(contains, error_text([] { check_writable_folder("/proc/shardwise"); }), "/proc/shardwise");
}

TEST(RemoveAll, IsContentWithNothing) {
  const test::TemporaryFolder folder;
  folder.put("a/b/c", "x");
  remove_all(folder / "a");
  remove_all(folder / "a");
  EXPECT_FALSE(exists(folder / "a"));
}

}  // namespace
}  // namespace shardwise::base::files_test

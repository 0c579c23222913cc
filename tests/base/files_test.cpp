#include "shardwise/base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"
#include "tests/support/without_rights.h"

namespace shardwise::base::files_test {
namespace {

namespace fs = std::filesystem;
using test::contains, test::contents, test::error_text;

int64_t entries(const std::string& directory) {
  return std::distance(fs::directory_iterator(directory), fs::directory_iterator());
}

TEST(File, WritesAndReadsAtOffsets) {
  const test::TemporaryDirectory directory;
  const File file = File::create(directory / "a");
  file.allocate(6);
  file.write(4, 2, "ef");
  file.write(0, 4, "abcd");
  file.sync();
  EXPECT_EQ(contents(directory / "a"), "abcdef");
  char middle[3] = {};
  File::open_to_read(directory / "a").read(2, 3, middle);
  EXPECT_EQ(std::string(middle, 3), "cde");
}

TEST(OutputChecks, AcceptNewPathsAndRegularFiles) {
  const test::TemporaryDirectory directory;
  check_new_or_regular_file("--out", directory / "new");
  check_new_or_regular_file("--out", directory.put("old", ""));
  fs::create_symlink("old", directory / "link");
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  for (const char* name : {"link", "fifo", "."}) {
    EXPECT_PRED2(contains, error_text([&] { check_new_or_regular_file("--out", directory / name); }),
                 "--out must be a regular file or a new path; got " + directory / name);
  }
}

TEST(OutputChecks, RejectInputs) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.put("in/file", ""), sibling = directory.put("into", "");
  fs::create_symlink("in", directory / "linked");
  fs::create_hard_link(file, directory / "same");
  const auto check = [](const std::string& path, const std::vector<std::string>& inputs) {
    check_not_an_input("--out", path, inputs);
  };
  check(sibling, {file, directory / "in", directory / "absent"});
  check(directory / "new", {file, directory / "in"});
  check(directory / "in/new", {file});
  check(directory / "..", {directory.path()});
  for (const std::string& path :
       {file, directory / "same", directory / "linked/file", directory / "in/../in/file"}) {
    EXPECT_PRED2(contains, error_text([&] { check(path, {sibling, file}); }), "must not overwrite an input");
  }
  for (const char* path : {"in/new", "in/below/new", "linked/new", "linked"}) {
    EXPECT_PRED2(contains, error_text([&] { check(directory / path, {directory / "in"}); }),
                 "got " + directory / path);
  }
}

TEST(OutputChecks, ResolveLinks) {
  const test::TemporaryDirectory directory;
  const std::string file = directory.put("in/file", "");
  fs::create_symlink("in", directory / "linked");
  EXPECT_TRUE(is_same_file(file, directory / "linked/file"));
  EXPECT_TRUE(is_same_file(directory / "in/new", directory / "linked/./new"));
  EXPECT_TRUE(is_same_file(directory / "in/new", directory / "in/new/"));
  EXPECT_FALSE(is_same_file(directory / "in/new", directory / "new"));
}

TEST(File, MoveAssignmentKeepsTheFileOpen) {
  const test::TemporaryDirectory directory;
  File one = File::create(directory / "one");
  File two = File::create(directory / "two");
  two = std::move(one);
  two.write(0, 1, "x");
  EXPECT_EQ(two.path(), directory / "one");
  EXPECT_EQ(contents(directory / "one"), "x");
}

TEST(File, RejectsReadingOtherThanRegularFiles) {
  const test::TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  fs::create_symlink("nowhere", directory / "dangling");
  for (const std::string name : {"missing", "fifo", "dangling", ""}) {
    EXPECT_PRED2(contains, error_text([&] { File::open_to_read(directory / name); }), directory / name);
  }
}

TEST(File, ThrowsOnReadingBeyondTheEnd) {
  const test::TemporaryDirectory directory;
  const File file = File::open_to_read(directory.put("a", "abc"));
  char bytes[4];
  EXPECT_PRED2(contains, error_text([&] { file.read(1, 3, bytes); }), "truncated");
}

TEST(File, CreateNeverOverwrites) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("a", "old");
  try {
    File::create(path);
    FAIL() << "created twice";
  } catch (const FileError& error) {
    EXPECT_EQ(error.error_number(), EEXIST);
    EXPECT_EQ(error.path(), path);
  }
  EXPECT_EQ(contents(path), "old");
}

TEST(File, ReportsAFullDisk) {
  const File full = File::open_to_write("/dev/full");
  const std::string text = error_text<FileError>([&] { full.write(0, 3, "abc"); });
  EXPECT_PRED2(contains, text, "write /dev/full: no space left");
}

TEST(File, AllocateReservesDiskBlocks) {
  const test::TemporaryDirectory directory;
  const int64_t bytes = 1 << 20;
  File::create(directory / "a").allocate(bytes);
  struct stat status {};
  ASSERT_EQ(::stat((directory / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, bytes);
  EXPECT_GE(status.st_blocks * 512, bytes);
}

TEST(File, AllocateThrowsIfTheDiskIsTooSmall) {
  const test::TemporaryDirectory directory;
  const File file = File::create(directory / "a");
  EXPECT_PRED2(contains, error_text<FileError>([&] { file.allocate(int64_t{1} << 62); }), directory / "a");
}

TEST(ReadText, RejectsFilesAboveTheLimit) {
  const test::TemporaryDirectory directory;
  const std::string path = directory.put("a", "12345");
  EXPECT_EQ(read_text(path, 5), "12345");
  EXPECT_PRED2(contains, error_text([&] { read_text(path, 4); }), "at most 4 bytes; got 5");
}

TEST(WriteText, ReplacesTheFileAndLeavesNoTemporaryFile) {
  const test::TemporaryDirectory directory;
  write_text(directory / "a", "one");
  write_text(directory / "a", "two");
  EXPECT_EQ(contents(directory / "a"), "two");
  EXPECT_EQ(entries(directory.path()), 1);
}

TEST(WriteText, KeepsTheOldFileAndLeavesNoTemporaryFileOnFailure) {
  const test::TemporaryDirectory directory;
  make_directories(directory / "a/b");  // a directory that is not empty cannot be replaced by a file
  EXPECT_PRED2(contains, error_text<FileError>([&] { write_text(directory / "a", "text"); }),
               directory / "a");
  EXPECT_EQ(entries(directory.path()), 1);
  EXPECT_TRUE(is_directory(directory / "a/b"));
}

// root may read any directory, but not a thread of another file-system user.
TEST(MakeDirectories, NeedsNoPermissionToReadTheParent) {
  const test::TemporaryDirectory directory;
  const std::string parent = directory / "parent";
  fs::create_directory(parent);
  fs::permissions(directory.path(), fs::perms(0755));
  fs::permissions(parent, fs::perms(0333));
  {
    const test::WithoutRights nobody;
    EXPECT_EQ(error_text<FileError>([&] { sync_directory(parent); }),
              "open directory " + parent + ": Permission denied");
    EXPECT_NO_THROW(make_directories(parent + "/new/deeper"));
  }
  fs::permissions(parent, fs::perms(0755));
  EXPECT_TRUE(is_directory(parent + "/new/deeper"));
}

TEST(Rename, MovesDirectories) {
  const test::TemporaryDirectory directory;
  directory.put("step.tmp/weights", "w");
  base::rename(directory / "step.tmp", directory / "step");
  EXPECT_EQ(contents(directory / "step/weights"), "w");
  EXPECT_FALSE(exists(directory / "step.tmp"));
}

TEST(ReplaceSymlink, PointsToTheNewTarget) {
  const test::TemporaryDirectory directory;
  directory.put("step-1/a", "1");
  directory.put("step-2/a", "2");
  replace_symlink(directory / "latest", "step-1");
  EXPECT_EQ(contents(directory / "latest/a"), "1");
  replace_symlink(directory / "latest", "step-2");
  EXPECT_EQ(contents(directory / "latest/a"), "2");
  EXPECT_EQ(fs::read_symlink(directory / "latest"), "step-2");
  EXPECT_EQ(entries(directory.path()), 3);
}

TEST(ReplaceSymlink, DoesNotReplaceADirectory) {
  const test::TemporaryDirectory directory;
  directory.put("latest/a", "mine");
  EXPECT_PRED2(contains, error_text<FileError>([&] { replace_symlink(directory / "latest", "step-1"); }),
               "latest");
  EXPECT_EQ(contents(directory / "latest/a"), "mine");
  EXPECT_EQ(entries(directory.path()), 1);
}

TEST(CheckWritableDirectory, CreatesTheDirectoryAndLeavesItEmpty) {
  const test::TemporaryDirectory directory;
  check_writable_directory(directory / "a/b");
  EXPECT_TRUE(is_directory(directory / "a/b"));
  EXPECT_EQ(entries(directory / "a/b"), 0);
}

TEST(CheckWritableDirectory, NamesTheDirectoryInErrors) {
  const test::TemporaryDirectory directory;
  directory.put("file", "x");
  EXPECT_PRED2(contains, error_text([&] { check_writable_directory(directory / "file/b"); }),
               "save directory " + (directory / "file/b"));
  EXPECT_PRED2(contains, error_text([] { check_writable_directory("/proc/shardwise"); }), "/proc/shardwise");
  const std::string refused = "save directory /proc: must be a writable directory; got: create";
  EXPECT_PRED2(contains, error_text([] { check_writable_directory("/proc"); }),
               refused);  // without O_TMPFILE
}

TEST(CheckWritableDirectory, RefusesAnotherUsersDirectory) {
  const test::TemporaryDirectory directory;
  fs::permissions(directory.path(), fs::perms(0555));
  const test::WithoutRights nobody;
  EXPECT_EQ(error_text([&] { check_writable_directory(directory.path()); }),
            "save directory " + directory.path() + ": must be a writable directory; got: create in " +
                directory.path() + ": Permission denied");
}

TEST(RemoveAll, AcceptsAMissingPath) {
  const test::TemporaryDirectory directory;
  directory.put("a/b/c", "x");
  remove_all(directory / "a");
  remove_all(directory / "a");
  EXPECT_FALSE(exists(directory / "a"));
}

}  // namespace
}  // namespace shardwise::base::files_test

// File and directory operations for checkpoints: reads and writes are complete or throw, files are synced,
// and renames are atomic.
//
// A path that cannot be read is a usage error, c10::ValueError. A failed write (disk full, no permission, I/O
// error) is FileError, which keeps errno.
#pragma once
#include <c10/util/Exception.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::base {

/// A system call failed on a file that is being written.
class FileError : public c10::Error {
 public:
  /// Formats the message as `op path: reason; hint`.
  FileError(const std::string& op, std::string path, int error_number);
  /// For an error without an errno; error_number() returns 0.
  FileError(const std::string& op, std::string path, const std::string& reason);
  const std::string& path() const { return path_; }
  int error_number() const { return error_number_; }

 private:
  std::string path_;
  int error_number_;
};

/// An open regular file with its path. Reads and writes pass an offset, so threads may share a File.
class File {
 public:
  /// Opens `path` for reading. Errors: c10::ValueError unless `path` is a readable regular file.
  static File open_to_read(const std::string& path);
  /// Creates a file that does not exist yet. Errors: FileError.
  static File create(const std::string& path);
  /// Opens an existing file without changing it. Errors: FileError.
  static File open_to_write(const std::string& path);

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }
  int64_t size() const;
  /// Returns a hash of inode, size and modification time, which changes if the file is replaced or written
  /// to. Errors: FileError.
  uint64_t fingerprint() const;

  /// Reads `length` bytes at `offset`. Errors: c10::ValueError if the file is shorter or cannot be read.
  void read(int64_t offset, int64_t length, void* dst) const;
  /// Writes `length` bytes at `offset`. Errors: FileError.
  void write(int64_t offset, int64_t length, const void* src) const;
  /// Resizes the file to `bytes` and allocates its disk blocks, so that a full disk fails here and not in a
  /// later write. Errors: FileError (ENOSPC if the disk is full).
  void allocate(int64_t bytes) const;
  /// Flushes all writes to the disk (fsync). Errors: FileError.
  void sync() const;

 private:
  File(std::string path, Fd descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  std::string path_;
  Fd descriptor_;
};

/// Returns a file's contents. Errors: c10::ValueError if it cannot be read or is longer than `max_bytes`.
std::string read_text(const std::string& path, int64_t max_bytes = int64_t{1} << 30);
/// Writes or atomically replaces a file and syncs it. Errors: FileError.
void write_text(const std::string& path, const std::string& text);

bool exists(const std::string& path);
bool is_directory(const std::string& path);
/// Creates the directory `path` and its parents. Errors: FileError.
void make_directories(const std::string& path);
/// Creates a directory with a unique name that begins with `prefix`, with mode 0700, in TMPDIR or /tmp.
/// Errors: FileError.
std::string make_temporary_directory(const std::string& prefix);
/// Removes a file, or a directory with its contents, if it exists. Errors: FileError.
void remove_all(const std::string& path);
/// Syncs a directory, which makes created, renamed and removed entries durable. Errors: FileError.
void sync_directory(const std::string& path);
/// Atomically renames `from` to `to`, replacing `to` if it is a file, and syncs the directory.
/// Errors: FileError.
void rename(const std::string& from, const std::string& to);
/// Atomically creates or replaces the symbolic link `link` to `target` (relative to the link's directory) and
/// syncs the directory. Errors: FileError.
void replace_symlink(const std::string& link, const std::string& target);
/// Returns true if both paths refer to one file, also through links. For files that do not exist yet,
/// compares the resolved paths.
bool is_same_file(const std::string& a, const std::string& b);
/// Returns `path` relative to `directory`, both with links resolved: "." if they are one, "" if `path` is not
/// in `directory`. They need not exist.
std::string path_within(const std::string& path, const std::string& directory);
/// Creates `directory` if it does not exist and checks that files can be created in it.
/// Errors: c10::ValueError.
void check_writable_directory(const std::string& directory);
/// Checks an output file that is created by a rename, which would replace a link or a device by a file.
/// Errors: c10::ValueError beginning with `flag` unless `path` is a regular file or does not exist.
void check_new_or_regular_file(const std::string& flag, const std::string& path);
/// Checks that writing to `path` does not overwrite an input: one of the files `inputs`, or a file in one of
/// the directories `inputs`. Errors: c10::ValueError beginning with `flag`.
void check_not_an_input(const std::string& flag, const std::string& path,
                        const std::vector<std::string>& inputs);

}  // namespace shardwise::base

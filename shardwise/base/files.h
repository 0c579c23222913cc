// Files and directories as checkpoints need them: whole reads and writes or an error, synced, renamed
// atomically.
//
// What the caller named wrongly (a path to read that is not there) is c10::ValueError; what the system
// refuses while writing (no room, no permission, an I/O error) is FileError, which keeps errno.
#pragma once
#include <c10/util/Exception.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/base/fd.h"

namespace shardwise::base {

/// The system refused an operation on a file that we write.
class FileError : public c10::Error {
 public:
  /// Reads `op path: reason; hint`.
  FileError(const std::string& op, std::string path, int error_number);
  /// For what no errno says; error_number() is 0.
  FileError(const std::string& op, std::string path, const std::string& reason);
  const std::string& path() const { return path_; }
  int error_number() const { return error_number_; }

 private:
  std::string path_;
  int error_number_;
};

/// An open regular file that knows its path. Reads and writes name their offset, so threads may share it.
class File {
 public:
  /// Errors: c10::ValueError unless `path` is a regular file that can be read.
  static File open_to_read(const std::string& path);
  /// Creates a file that does not exist yet. Errors: FileError.
  static File create(const std::string& path);
  /// Opens an existing file without changing it. Errors: FileError.
  static File open_to_write(const std::string& path);

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_.get(); }
  int64_t size() const;
  /// A hash of inode, size and time of last change: another one for a file that was replaced or written to.
  /// Errors: FileError.
  uint64_t fingerprint() const;

  /// All `length` bytes at `offset`. Errors: c10::ValueError when the file ends before or cannot be read.
  void read(int64_t offset, int64_t length, void* dst) const;
  /// All `length` bytes at `offset`. Errors: FileError.
  void write(int64_t offset, int64_t length, const void* src) const;
  /// Makes the file `bytes` long with room on the disk for all of it. Errors: FileError (ENOSPC now, not
  /// later).
  void allocate(int64_t bytes) const;
  /// Returns once all that was written is on the disk. Errors: FileError.
  void sync() const;

 private:
  File(std::string path, Fd descriptor) : path_(std::move(path)), descriptor_(std::move(descriptor)) {}

  std::string path_;
  Fd descriptor_;
};

/// The whole of a file. Errors: c10::ValueError when it cannot be read or is longer than `most_bytes`.
std::string read_text(const std::string& path, int64_t most_bytes = int64_t{1} << 30);
/// Writes (or replaces) a file and syncs it: readers see the old text or the new one. Errors: FileError.
void write_text(const std::string& path, const std::string& text);

/// Of a hash so far and the next number, in order.
uint64_t combine(uint64_t hash, uint64_t number);

bool exists(const std::string& path);
bool is_directory(const std::string& path);
/// Errors: FileError.
void make_directories(const std::string& path);
/// Makes a directory of a new name that begins with `prefix`, for this user alone, below TMPDIR (/tmp
/// without). Errors: FileError.
std::string make_temporary_directory(const std::string& prefix);
/// Removes a file or a directory with all in it, if there. Errors: FileError.
void remove_all(const std::string& path);
/// Makes the names in a directory durable: after creating, renaming or removing in it. Errors: FileError.
void sync_directory(const std::string& path);
/// Gives `from` the name `to`, which must not exist or be a file (then replaced), in one step; syncs the
/// directory. Errors: FileError.
void rename(const std::string& from, const std::string& to);
/// Makes the symbolic link `link` point at `target` (relative to the link's directory), replacing an older
/// link in one step; syncs the directory. Errors: FileError.
void flip_link(const std::string& link, const std::string& target);
/// Whether both name one file, by links too; of files that are not there yet, whether they would.
bool is_same_file(const std::string& a, const std::string& b);
/// Errors: c10::ValueError unless files can be created in `directory`, which is made if need be.
void check_writable_directory(const std::string& directory);
/// For what appears by a rename, which would put a file in the place of a link or a device.
/// Errors: c10::ValueError beginning with `flag` unless `path` itself is a regular file or not there.
void check_new_or_regular_file(const std::string& flag, const std::string& path);
/// Errors: c10::ValueError beginning with `flag` when writing to `path` would change what is read: one of the
/// files `inputs`, or what is in a directory of them.
void check_no_input(const std::string& flag, const std::string& path, const std::vector<std::string>& inputs);

}  // namespace shardwise::base

// One change of a directory tree, and its form in the recorder's log.
//
// The log is a sequence of OperationHeader, path, other path and data. recorder.cpp writes it and includes
// no other header of this project, recording.cpp reads it.
#pragma once
#include <cstdint>
#include <string>

namespace shardwise::testing {

enum class OperationKind : uint32_t {
  create,    // an empty file at `path`
  write,     // `data` at `offset`
  resize,    // to `offset` bytes
  sync,      // fsync or fdatasync of a file or a directory
  rename,    // `path` to `other`, which it replaces
  exchange,  // `path` with `other`
  symlink,   // at `path`, to `other`
  unlink,    // a file or a link
  mkdir,
  rmdir,
};

struct OperationHeader {
  OperationKind kind;
  uint32_t path_bytes, other_bytes;
  uint64_t data_bytes;
  int64_t offset;
};

struct Operation {
  OperationKind kind;
  std::string path, other = {};  // relative to the tree; a link's target as it is
  int64_t offset = 0;
  std::string data = {};
};

}  // namespace shardwise::testing

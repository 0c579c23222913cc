// The token file format: 64 bytes of header, then the token ids, little-endian. The file is mapped to read
// it.
//
//   byte 0   8 bytes  "shardtok"
//        8   uint32   1, the version of the format
//       12   uint32   bytes per id: 2 if all ids fit, else 4
//       16   uint64   number of ids
//       24   uint64   vocab_size; all ids are below it
//       32   uint64   number of encoded texts
//       40   24 zeros
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwise/base/atomic_file.h"
#include "shardwise/base/mapped_file.h"
#include "shardwise/text/token_source.h"

namespace shardwise::text {

/// Writes a token file: to a temporary file in the directory of `path`, which finish() renames and the
/// destructor removes otherwise.
class TokenFileWriter {
 public:
  /// Creates the temporary file. Throws base::FileError.
  TokenFileWriter(const std::string& path, int64_t vocab_size)
      : TokenFileWriter(path, vocab_size, base::temporary_beside(path)) {}
  /// The same with the path of the temporary file, from base::temporary_beside().
  TokenFileWriter(const std::string& path, int64_t vocab_size, std::string temporary);

  int64_t bytes_per_id() const { return bytes_per_id_; }
  int64_t count() const { return count_; }
  /// Appends the ids of one text. Throws c10::ValueError if an id is not in [0, vocab_size), and
  /// base::FileError.
  void append(std::span<const int64_t> ids);
  /// Writes the header and renames the file to `path`. Throws base::FileError.
  void finish();

 private:
  template <class Id>
  void write(std::span<const int64_t> ids);

  std::string path_;
  int64_t vocab_size_, bytes_per_id_, count_ = 0, texts_ = 0;
  base::AtomicFile file_;
  std::vector<uint8_t> buffer_;
};

/// The token ids of a token file.
class TokenFile : public TokenSource {
 public:
  /// Throws c10::ValueError if the file is not a token file or its length does not match its header.
  explicit TokenFile(const std::string& path);

  int64_t size() const override { return count_; }
  int64_t vocab_size() const override { return vocab_size_; }
  uint64_t fingerprint() const override { return file_.fingerprint(); }
  /// The number of encoded texts.
  int64_t text_count() const { return texts_; }
  /// Reads ids [begin, begin + ids.size()). Throws c10::ValueError if the range is out of bounds or an id is
  /// not below vocab_size.
  void read(int64_t begin, std::span<int64_t> ids) const override;

 private:
  base::MappedFile file_;
  std::string path_;
  int64_t bytes_per_id_, count_, vocab_size_, texts_;
};

}  // namespace shardwise::text

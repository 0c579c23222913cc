// Token ids on disk, laid out to be mapped: 64 bytes of header, then the ids, little-endian.
//
//   byte 0   8 bytes  "shardtok"
//        8   uint32   1, the version of this layout
//       12   uint32   bytes of an id: 2 where all ids fit, else 4
//       16   uint64   number of ids
//       24   uint64   vocab_size: ids are below it
//       32   uint64   number of texts that were encoded one after the other
//       40   24 zeros
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/base/files.h"
#include "shardwise/text/mapped_file.h"
#include "shardwise/text/token_source.h"

namespace shardwise::text {

/// Writes beside `path` and gives the file its name when it is whole.
class TokenFileWriter {
 public:
  /// Errors: base::FileError.
  TokenFileWriter(std::string path, int64_t vocab_size);
  /// Removes what was not finished.
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Where the ids are until they are whole.
  static std::string temporary_of(const std::string& path);

  int64_t bytes_per_id() const { return bytes_per_id_; }
  int64_t count() const { return count_; }
  /// The ids of one text. Errors: c10::ValueError for one that is not below vocab_size; base::FileError.
  void append(std::span<const int64_t> ids);
  /// Errors: base::FileError.
  void finish();

 private:
  template <class Id>
  void write(std::span<const int64_t> ids);

  std::string path_, temporary_;
  int64_t vocab_size_, bytes_per_id_, count_ = 0, texts_ = 0;
  std::optional<base::File> file_;
  std::vector<uint8_t> buffer_;
};

/// Ids of a token file, by position.
class TokenFile : public TokenSource {
 public:
  /// Errors: c10::ValueError for a file that is none, or has another length than its header says.
  explicit TokenFile(const std::string& path);

  int64_t size() const override { return count_; }
  int64_t vocab_size() const override { return vocab_size_; }
  uint64_t fingerprint() const override { return file_.fingerprint(); }
  int64_t text_count() const { return texts_; }
  /// Ids [begin, begin + ids.size()). Errors: c10::ValueError outside the file, and for an id that is not
  /// below vocab_size.
  void read(int64_t begin, std::span<int64_t> ids) const override;

 private:
  MappedFile file_;
  std::string path_;
  int64_t bytes_per_id_, count_, vocab_size_, texts_;
};

}  // namespace shardwise::text

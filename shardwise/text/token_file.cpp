#include "shardwise/text/token_file.h"

#include <c10/util/Exception.h>

#include <bit>
#include <cstring>
#include <utility>

namespace shardwise::text {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Header {
  char magic[8];
  uint32_t version, bytes_per_id;
  uint64_t count, vocab_size, texts;
  uint8_t zeros[24];
};
static_assert(sizeof(Header) == 64);

constexpr std::string_view kMagic = "shardtok";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMaxVocabSize = uint64_t{1} << 32;  // an id has at most 4 bytes
constexpr int64_t kBegin = sizeof(Header);

Header header_of(const base::MappedFile& file, const std::string& path) {
  Header header{};
  TORCH_CHECK_VALUE(file.size() >= kBegin, path, ": a token file must start with ", kBegin,
                    " bytes of header; got ", file.size(), " bytes [SW0170]");
  file.read(0, kBegin, reinterpret_cast<uint8_t*>(&header));
  const bool is_token_file = std::memcmp(header.magic, kMagic.data(), kMagic.size()) == 0 &&
                             header.version == kVersion &&
                             (header.bytes_per_id == 2 || header.bytes_per_id == 4);
  TORCH_CHECK_VALUE(is_token_file, path, ": must be a token file of version ", kVersion,
                    "; got another file [SW0171]");
  const uint64_t room = static_cast<uint64_t>(file.size() - kBegin) / header.bytes_per_id;
  const bool fits = header.count == room && (file.size() - kBegin) % header.bytes_per_id == 0;
  TORCH_CHECK_VALUE(fits, path, ": a token file must have the number of ids in its header, ", header.count,
                    "; got ", room, " [SW0172]");
  TORCH_CHECK_VALUE(header.vocab_size >= 1 && header.vocab_size <= kMaxVocabSize, path,
                    ": the vocab_size of a token file must be from 1 to 2^32; got ", header.vocab_size,
                    " [SW0682]");
  return header;
}

void check_id(int64_t id, int64_t vocab_size, const std::string& path) {
  TORCH_CHECK_VALUE(id >= 0 && id < vocab_size, path, ": ids must be from 0 to below its vocab_size, ",
                    vocab_size, "; got ", id, " [SW0173]");
}

}  // namespace

TokenFileWriter::TokenFileWriter(const std::string& path, int64_t vocab_size, std::string temporary)
    : path_(path),
      vocab_size_(vocab_size),
      bytes_per_id_(vocab_size <= int64_t{1} << 16 ? 2 : 4),
      file_(path, std::move(temporary)) {}

template <class Id>
void TokenFileWriter::write(std::span<const int64_t> ids) {
  buffer_.resize(ids.size() * sizeof(Id));
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<Id>(ids[i]);
    std::memcpy(buffer_.data() + i * sizeof(Id), &id, sizeof(Id));
  }
  file_.file().write(kBegin + count_ * bytes_per_id_, static_cast<int64_t>(buffer_.size()), buffer_.data());
}

void TokenFileWriter::append(std::span<const int64_t> ids) {
  for (const int64_t id : ids) check_id(id, vocab_size_, path_);
  if (bytes_per_id_ == 2) {
    write<uint16_t>(ids);
  } else {
    write<uint32_t>(ids);
  }
  count_ += static_cast<int64_t>(ids.size());
  ++texts_;
}

void TokenFileWriter::finish() {
  Header header{.magic = {},
                .version = kVersion,
                .bytes_per_id = static_cast<uint32_t>(bytes_per_id_),
                .count = static_cast<uint64_t>(count_),
                .vocab_size = static_cast<uint64_t>(vocab_size_),
                .texts = static_cast<uint64_t>(texts_),
                .zeros = {}};
  std::memcpy(header.magic, kMagic.data(), kMagic.size());
  file_.file().write(0, kBegin, &header);
  file_.publish();
}

TokenFile::TokenFile(const std::string& path) : file_(path), path_(path) {
  const Header header = header_of(file_, path);
  bytes_per_id_ = header.bytes_per_id;
  count_ = static_cast<int64_t>(header.count);
  vocab_size_ = static_cast<int64_t>(header.vocab_size);
  texts_ = static_cast<int64_t>(header.texts);
}

void TokenFile::read(int64_t begin, std::span<int64_t> ids) const {
  const auto count = static_cast<int64_t>(ids.size());
  TORCH_CHECK_VALUE(begin >= 0 && begin <= count_ - count, path_, ": reads must be within its ", count_,
                    " tokens; got ", count, " at ", begin, " [SW0174]");
  std::vector<uint8_t> bytes(ids.size() * bytes_per_id_);
  file_.read(kBegin + begin * bytes_per_id_, static_cast<int64_t>(bytes.size()), bytes.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    uint32_t id = 0;
    std::memcpy(&id, bytes.data() + i * bytes_per_id_, bytes_per_id_);
    check_id(id, vocab_size_, path_);
    ids[i] = id;
  }
}

}  // namespace shardwise::text

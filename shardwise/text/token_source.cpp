#include "shardwise/text/token_source.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "shardwise/base/files.h"

namespace shardwise::text {

void ByteTokens::read(int64_t begin, std::span<int64_t> ids) const {
  std::vector<uint8_t> bytes(ids.size());
  corpus_.read(begin, std::ssize(bytes), bytes.data());
  std::copy(bytes.begin(), bytes.end(), ids.begin());
}

EncodedTokens::EncodedTokens(const Corpus& corpus, const Tokenizer& tokenizer)
    : vocab_size_(tokenizer.vocab_size()), fingerprint_(corpus.fingerprint()) {
  std::string text;
  std::vector<int64_t> ids;
  for (int64_t file = 0, begin = 0; file < corpus.file_count(); begin += corpus.file_size(file++)) {
    text.resize(corpus.file_size(file));
    corpus.read(begin, std::ssize(text), reinterpret_cast<uint8_t*>(text.data()));
    ids.clear();
    tokenizer.encode(text, Specials::kWith, ids);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  // Another tokenizer gives other tokens of the same files.
  for (const uint32_t id : ids_) fingerprint_ = base::combine(fingerprint_, id);
}

void EncodedTokens::read(int64_t begin, std::span<int64_t> ids) const {
  TORCH_CHECK_VALUE(begin >= 0 && begin <= size() - std::ssize(ids), "text: must be read within its ", size(),
                    " tokens; got ", ids.size(), " at ", begin);
  std::copy_n(ids_.begin() + begin, ids.size(), ids.begin());
}

}  // namespace shardwise::text

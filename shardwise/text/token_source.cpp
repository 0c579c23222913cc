#include "shardwise/text/token_source.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>

#include "shardwise/base/files.h"
#include "shardwise/base/hash.h"

namespace shardwise::text {

void ByteTokens::read(int64_t begin, std::span<int64_t> ids) const {
  std::vector<uint8_t> bytes(ids.size());
  corpus_.read(begin, std::ssize(bytes), bytes.data());
  std::copy(bytes.begin(), bytes.end(), ids.begin());
}

EncodedTokens::EncodedTokens(const Corpus& corpus, const Tokenizer& tokenizer)
    : vocab_size_(tokenizer.vocab_size()), fingerprint_(corpus.fingerprint()) {
  std::vector<int64_t> ids;
  for (int64_t file = 0; file < corpus.file_count(); ++file) {
    ids.clear();
    const std::string text = corpus.read_file(file);
    invalid_utf8_.add(tokenizer, text, corpus.file_path(file));
    tokenizer.encode(text, SpecialTokens::with, ids);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  // The ids distinguish tokenizers on the same files.
  for (const uint32_t id : ids_) fingerprint_ = base::mix(fingerprint_, id);
}

void EncodedTokens::read(int64_t begin, std::span<int64_t> ids) const {
  TORCH_CHECK_VALUE(begin >= 0 && begin <= size() - std::ssize(ids), "text: reads must be within its ",
                    size(), " tokens; got ", ids.size(), " at ", begin, " [SW0156]");
  std::copy_n(ids_.begin() + begin, ids.size(), ids.begin());
}

}  // namespace shardwise::text

#include "shardwise/text/tokenizer.h"

#include <c10/util/Exception.h>

namespace shardwise::text {

std::vector<int64_t> BytesTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

std::string BytesTokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const int64_t id : ids) {
    TORCH_CHECK_VALUE(id >= 0 && id < kVocabSize, "tokenizer bytes: ids must be from 0 to 255; got ", id);
    text += static_cast<char>(id);
  }
  return text;
}

}  // namespace shardwise::text

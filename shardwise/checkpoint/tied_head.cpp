#include "shardwise/checkpoint/tied_head.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/base/log.h"
#include "shardwise/checkpoint/weight_files.h"
#include "shardwise/config/family.h"

namespace shardwise::checkpoint {
namespace {

constexpr const char* kHead = "lm_head.weight";
constexpr int64_t kHeadBlockBytes = int64_t{1} << 20;

std::string bytes_of(const TensorSource& source, int64_t offset, int64_t length) {
  std::string bytes(static_cast<size_t>(length), '\0');
  source.file->read(*source.tensor, offset, length, bytes.data());
  return bytes;
}

/// Returns whether the rows of `part`, a range of the embedding, equal the same rows of `head`.
bool has_rows(const TensorSource& head, const TensorSource& part) {
  const int64_t row_bytes = head.tensor->bytes() / head.tensor->shape.at(0);
  const int64_t all = part.size * row_bytes;
  for (int64_t done = 0; done < all; done += kHeadBlockBytes) {
    const int64_t length = std::min(kHeadBlockBytes, all - done);
    if (bytes_of(part, part.file_begin * row_bytes + done, length) !=
        bytes_of(head, part.begin * row_bytes + done, length))
      return false;
  }
  return true;
}

bool is_copy_of(const WeightFiles& files, const std::string& embedding) {
  const auto head = files.find(kHead), source = files.find(embedding);
  if (head.dtype != source.dtype || head.shape != source.shape) return false;
  const TensorSource full = files.full_source(kHead);
  return std::ranges::all_of(files.parts(embedding, /*dim=*/0),
                             [&](const TensorSource& part) { return has_rows(full, part); });
}

}  // namespace

void warn_of_unused_head(const std::filesystem::path& directory, const std::string& command) {
  const config::Config config = config::load_config(directory);
  if (!config.tie_word_embeddings) return;
  const WeightFiles files(directory, config);
  const auto names =
      config::stored_names(config::family_of(config.model_type), "model.embed_tokens.weight").names;
  const std::string embedding = name_in(files, names.front(), config);
  if (!files.contains(kHead) || !files.contains(embedding) || is_copy_of(files, embedding)) return;
  base::log_warning(
      fmt::format("{}: {} should equal {} in {}, whose config.json has tie_word_embeddings true; got another "
                  "dtype, shape or value, and it is not used; set tie_word_embeddings to false to use it, as "
                  "transformers does [SW0591]",
                  command, kHead, embedding, directory.string()));
}

}  // namespace shardwise::checkpoint

#include "shardwise/text/sentencepiece_tokenizer.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "shardwise/text/byte_fallback.h"
#include "shardwise/text/json_fields.h"
#include "shardwise/text/metaspace.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/sentencepiece_encoder.h"
#include "shardwise/text/sentencepiece_model.h"
#include "shardwise/text/sentencepiece_normalizer.h"
#include "shardwise/text/special_ids.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

PieceTrie user_defined_pieces(const SentencePieceModel& model) {
  std::vector<std::pair<std::string_view, uint32_t>> pieces;
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].type == Piece::Type::user_defined) pieces.emplace_back(model.pieces[id].text, id);
  }
  return PieceTrie(std::move(pieces));
}

std::unique_ptr<SentencePieceEncoder> make_encoder(const SentencePieceModel& model,
                                                   const PieceTrie& user_defined) {
  if (model.algorithm == SentencePieceModel::Algorithm::bpe)
    return std::make_unique<SentencePieceBpe>(model, user_defined);
  return std::make_unique<SentencePieceUnigram>(model);
}

/// Returns the id of `token` if it is a control piece of the model.
std::optional<int64_t> control_id(const SentencePieceModel& model, const std::string& token) {
  const auto id = model.id_of(token);
  const bool is_control = id && model.pieces[*id].type == Piece::Type::control;
  return is_control ? std::optional<int64_t>(*id) : std::nullopt;
}

/// Replaces metaspaces in `piece` by spaces.
std::string with_spaces(std::string_view piece) {
  std::string text;
  for (size_t at; (at = piece.find(kMetaspace)) != std::string_view::npos;) {
    text.append(piece.substr(0, at)) += ' ';
    piece.remove_prefix(at + kMetaspace.size());
  }
  return text.append(piece);
}

/// Drops the space at the beginning of the text that encoding added, or all of them if encoding removes extra
/// spaces. Byte pieces are held back until they are a character.
class SentencePieceStream : public StreamDecoder {
 public:
  explicit SentencePieceStream(const SentencePieceModel& model) : model_(model) {}

  std::string push(int64_t id) override;
  std::string finish() override { return decode_bytes(/*holds_back=*/false); }

 private:
  std::string decode(const Piece& piece);
  std::string decode_bytes(bool holds_back);

  const SentencePieceModel& model_;
  std::string bytes_;
  bool is_at_start_ = true;
};

std::string SentencePieceStream::push(int64_t id) {
  TORCH_CHECK_VALUE(id >= 0 && id < std::ssize(model_.pieces),
                    "tokenizer: ids must be in its vocabulary, below ", model_.pieces.size(), "; got ", id,
                    " [SW0165]");
  const Piece& piece = model_.pieces[size_t(id)];
  if (piece.type == Piece::Type::byte) {
    bytes_ += static_cast<char>(*byte_of_fallback_token(piece.text));
    return decode_bytes(/*holds_back=*/true);
  }
  std::string text = decode_bytes(/*holds_back=*/false);
  return text += decode(piece);
}

/// Replaces each byte that begins no character by U+FFFD.
std::string SentencePieceStream::decode_bytes(bool holds_back) {
  std::string text;
  size_t at = 0;
  while (at < bytes_.size()) {
    const Utf8Unit unit = utf8_unit(bytes_, at);
    if (unit.is_truncated && holds_back) break;
    const size_t length = unit.is_character ? unit.length : 1;
    text += unit.is_character ? std::string_view(bytes_).substr(at, length) : kReplacement;
    at += length;
  }
  bytes_.erase(0, at);
  if (!text.empty()) is_at_start_ = false;
  return text;
}

std::string SentencePieceStream::decode(const Piece& piece) {
  if (piece.type == Piece::Type::control) return "";
  if (piece.type == Piece::Type::unknown) {
    if (!model_.unk_surface.empty()) is_at_start_ = false;
    return model_.unk_surface;
  }
  std::string_view text = piece.text;
  const bool may_drop = is_at_start_ && (model_.adds_space || model_.removes_extra_spaces);
  const bool drops = may_drop && text.starts_with(kMetaspace);
  if (drops) text.remove_prefix(kMetaspace.size());
  if (!text.empty() || (drops && !model_.removes_extra_spaces)) is_at_start_ = false;
  return with_spaces(text);
}

}  // namespace

struct SentencePieceTokenizer::Parts {
  explicit Parts(const std::string& path)
      : model(read_sentencepiece_model(path)),
        user_defined(user_defined_pieces(model)),
        normalizer(model, user_defined, path + ": "),
        encoder(make_encoder(model, user_defined)) {}

  SentencePieceModel model;
  PieceTrie user_defined;
  SentencePieceNormalizer normalizer;
  std::unique_ptr<SentencePieceEncoder> encoder;
  std::mutex mutex;  // for the encoder
};

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& path)
    : parts_(std::make_unique<Parts>(path)) {
  const SentencePieceModel& model = parts_->model;
  special_ids_ = {control_id(model, model.bos), control_id(model, model.eos), control_id(model, model.pad),
                  int64_t{model.unk_id}};
  read_config(directory_of(path));
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::read_config(const std::string& directory) {
  const std::string path = directory + "/tokenizer_config.json";
  const auto object = read_object(path);
  const JsonPart config{object, path + ": "};
  check_added_tokens(config, directory);
  special_ids_ = special_ids_from_config(config, *this, special_ids_);
  adds_bos_ = config.flag("add_bos_token", false);
  adds_eos_ = config.flag("add_eos_token", false);
  if (adds_bos_ && !special_ids_.bos)
    throw_invalid(config.label("add_bos_token"), "false if bos_token is missing", true);
  if (adds_eos_ && !special_ids_.eos)
    throw_invalid(config.label("add_eos_token"), "false if eos_token is missing", true);
}

/// Rejects tokens that are added to the model: transformers matches them before SentencePiece encodes the
/// text.
void SentencePieceTokenizer::check_added_tokens(const JsonPart& config, const std::string& directory) const {
  const std::string path = directory + "/added_tokens.json";
  const auto added = read_object(path);
  for (const auto& [token, id] : added.items()) {
    check_added_token(token, id.dump(), path + ": " + base::shown(token));
  }
  if (!config.has("added_tokens_decoder")) return;
  const JsonPart decoder = config.part("added_tokens_decoder");
  for (const auto& [id, token] : decoder.object.items()) {
    const std::string* text = token_text(token);
    if (!text) throw_invalid(decoder.label(id), "a string or an AddedToken", token);
    check_added_token(*text, id, decoder.label(id));
  }
}

void SentencePieceTokenizer::check_added_token(const std::string& token, const std::string& id,
                                               const std::string& label) const {
  const auto known = id_of(token);
  if (!known || std::to_string(*known) != id) throw_invalid(label, "a token of the model with its id", token);
}

int64_t SentencePieceTokenizer::vocab_size() const {
  return std::ssize(parts_->model.pieces);
}

std::optional<int64_t> SentencePieceTokenizer::id_of(const std::string& token) const {
  return parts_->model.id_of(token);
}

void SentencePieceTokenizer::encode_checked(std::string_view text, SpecialTokens specials,
                                            std::vector<int64_t>& ids) const {
  const std::string normalized = parts_->normalizer.normalize(replace_invalid(text));
  const bool adds_specials = specials == SpecialTokens::with;
  if (adds_specials && adds_bos_) ids.push_back(*special_ids_.bos);
  const auto begin = std::ssize(ids);
  {
    const std::lock_guard lock(parts_->mutex);
    parts_->encoder->encode(normalized, ids);
  }
  // A run of unknown characters is one unknown token.
  const auto repeats = [unk = int64_t{parts_->model.unk_id}](int64_t a, int64_t b) {
    return a == unk && b == unk;
  };
  ids.erase(std::unique(ids.begin() + begin, ids.end(), repeats), ids.end());
  if (adds_specials && adds_eos_) ids.push_back(*special_ids_.eos);
}

std::unique_ptr<StreamDecoder> SentencePieceTokenizer::stream(SpecialTokens) const {
  return std::make_unique<SentencePieceStream>(parts_->model);
}

}  // namespace shardwise::text

#include "shardwise/text/sentencepiece_model.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/text/byte_fallback.h"
#include "shardwise/text/json_fields.h"
#include "shardwise/text/protobuf.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

constexpr int64_t kMaxModelBytes = int64_t{64} << 20;
constexpr size_t kMaxPieces = size_t{1} << 24;

// Adds the fields of the messages of sentencepiece_model.proto to a model.
class ModelReader {
 public:
  explicit ModelReader(const std::string& path) : where_(path + ": ") {}

  void read(std::string_view bytes);
  void index_pieces();
  SentencePieceModel take() { return std::move(model_); }

 private:
  void read_piece(std::string_view bytes);
  void read_trainer(std::string_view bytes);
  void read_normalizer(std::string_view bytes);
  void read_denormalizer(std::string_view bytes);
  void check_piece(const Piece& piece, const std::string& label) const;
  void index_special(const Piece& piece, uint32_t id);
  std::string utf8_text(std::string_view bytes, const char* name) const;
  std::string name_of(std::string_view bytes, const char* name, const char* if_empty) const;

  std::string where_;
  SentencePieceModel model_;
  bool has_unk_ = false;
  std::array<bool, 256> has_byte_{};
};

void ModelReader::read(std::string_view bytes) {
  ProtoMessage message(bytes, where_);
  while (const auto field = message.next()) {
    switch (field->number()) {
      case 1:
        read_piece(field->bytes());
        break;
      case 2:
        read_trainer(field->bytes());
        break;
      case 3:
        read_normalizer(field->bytes());
        break;
      case 5:
        read_denormalizer(field->bytes());
        break;
      default:
        break;
    }
  }
}

Piece::Type piece_type(uint64_t value, const std::string& label) {
  const bool is_known = value >= uint64_t(Piece::Type::normal) && value <= uint64_t(Piece::Type::byte);
  if (!is_known) throw_invalid(label + ".type", "from 1 to 6", nlohmann::json(value));
  return static_cast<Piece::Type>(value);
}

void ModelReader::read_piece(std::string_view bytes) {
  const std::string label = fmt::format("{}pieces[{}]", where_, model_.pieces.size());
  Piece piece;
  ProtoMessage message(bytes, where_);
  while (const auto field = message.next()) {
    if (field->number() == 1) piece.text = field->bytes();
    if (field->number() == 2) piece.score = field->float32();
    if (field->number() == 3) piece.type = piece_type(field->integer(), label);
  }
  check_piece(piece, label);
  model_.pieces.push_back(std::move(piece));
  TORCH_CHECK_VALUE(model_.pieces.size() <= kMaxPieces, where_, "must have at most ", kMaxPieces,
                    " pieces; got more [SW0524]");
}

void ModelReader::check_piece(const Piece& piece, const std::string& label) const {
  if (piece.text.empty() || piece.text.size() > kMaxPieceBytes)
    throw_invalid(label, fmt::format("of 1 to {} bytes", kMaxPieceBytes), nlohmann::json(piece.text.size()));
  if (!is_utf8(piece.text)) throw_invalid(label, "UTF-8", replace_invalid(piece.text));
  if (!std::isfinite(piece.score)) throw_invalid(label + ".score", "finite", std::to_string(piece.score));
}

void ModelReader::read_trainer(std::string_view bytes) {
  ProtoMessage message(bytes, where_);
  while (const auto field = message.next()) {
    switch (field->number()) {
      case 3: {
        const uint64_t type = field->integer();
        if (type != 1 && type != 2)
          throw_invalid(where_ + "trainer_spec.model_type", "1 (unigram) or 2 (BPE)", nlohmann::json(type));
        model_.algorithm = static_cast<SentencePieceModel::Algorithm>(type);
        break;
      }
      case 24:
        model_.treats_space_as_suffix = field->flag();
        break;
      case 35:
        model_.has_byte_fallback = field->flag();
        break;
      case 44:
        model_.unk_surface = utf8_text(field->bytes(), "unk_surface");
        break;
      case 46:
        model_.bos = name_of(field->bytes(), "bos_piece", "<s>");
        break;
      case 47:
        model_.eos = name_of(field->bytes(), "eos_piece", "</s>");
        break;
      case 48:
        model_.pad = name_of(field->bytes(), "pad_piece", "<pad>");
        break;
      default:
        break;
    }
  }
}

void ModelReader::read_normalizer(std::string_view bytes) {
  ProtoMessage message(bytes, where_);
  while (const auto field = message.next()) {
    if (field->number() == 2) model_.charsmap = field->bytes();
    if (field->number() == 3) model_.adds_space = field->flag();
    if (field->number() == 4) model_.removes_extra_spaces = field->flag();
    if (field->number() == 5) model_.escapes_spaces = field->flag();
  }
}

void ModelReader::read_denormalizer(std::string_view bytes) {
  ProtoMessage message(bytes, where_);
  while (const auto field = message.next()) {
    const bool has_rules = field->number() == 2 && !field->bytes().empty();
    if (has_rules)
      throw_invalid(where_ + "denormalizer_spec.precompiled_charsmap", "empty",
                    fmt::format("{} bytes", field->bytes().size()));
  }
}

std::string ModelReader::utf8_text(std::string_view bytes, const char* name) const {
  std::string text(bytes);
  if (!is_utf8(text)) throw_invalid(where_ + "trainer_spec." + name, "UTF-8", replace_invalid(text));
  return text;
}

std::string ModelReader::name_of(std::string_view bytes, const char* name, const char* if_empty) const {
  return bytes.empty() ? if_empty : utf8_text(bytes, name);
}

void ModelReader::index_pieces() {
  model_.ids.reserve(model_.pieces.size());
  for (uint32_t id = 0; id < model_.pieces.size(); ++id) {
    const Piece& piece = model_.pieces[id];
    const auto [other, is_new] = model_.ids.emplace(piece.text, id);
    TORCH_CHECK_VALUE(is_new, where_, "pieces must be unique; got ", base::shown(piece.text), " as pieces ",
                      other->second, " and ", id, " [SW0525]");
    index_special(piece, id);
  }
  TORCH_CHECK_VALUE(has_unk_, where_, "must have a piece of type 2 (unknown); got none [SW0526]");
  if (!model_.has_byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte)
    TORCH_CHECK_VALUE(has_byte_[size_t(byte)], where_,
                      "byte_fallback needs a piece for every byte; got none for ", byte, " [SW0527]");
}

void ModelReader::index_special(const Piece& piece, uint32_t id) {
  const std::string label = fmt::format("{}pieces[{}]", where_, id);
  if (piece.type == Piece::Type::unknown) {
    if (has_unk_) throw_invalid(label, "the only piece of type 2 (unknown)", piece.text);
    has_unk_ = true;
    model_.unk_id = id;
  }
  if (piece.type != Piece::Type::byte) return;
  const auto byte = byte_of_fallback_token(piece.text);
  const bool is_spelled_so = byte && byte_fallback_token(*byte) == piece.text;
  if (!is_spelled_so || !model_.has_byte_fallback)
    throw_invalid(label, "like <0x41>, in a model with byte_fallback, for type 6 (byte)", piece.text);
  has_byte_[*byte] = true;
  model_.byte_ids[*byte] = id;
}

}  // namespace

std::optional<uint32_t> SentencePieceModel::id_of(std::string_view text) const {
  const auto found = ids.find(text);
  return found == ids.end() ? std::nullopt : std::optional(found->second);
}

void SentencePieceModel::append_unknown(std::string_view text, std::vector<uint32_t>& symbols) const {
  if (!has_byte_fallback) return symbols.push_back(unk_id);
  for (const char byte : text) symbols.push_back(byte_ids[static_cast<uint8_t>(byte)]);
}

SentencePieceModel read_sentencepiece_model(const std::string& path) {
  ModelReader reader(path);
  reader.read(base::read_text(path, kMaxModelBytes));
  reader.index_pieces();
  return reader.take();
}

}  // namespace shardwise::text

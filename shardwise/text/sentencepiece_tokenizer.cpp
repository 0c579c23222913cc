#include "shardwise/text/sentencepiece_tokenizer.h"

#include <c10/util/Exception.h>
#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>

#include "shardwise/base/files.h"
#include "shardwise/text/json_fields.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/special_ids.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

std::optional<int64_t> optional_id(int id) {
  return id >= 0 ? std::optional<int64_t>(id) : std::nullopt;
}

std::string decode_with(const Processor& processor, const std::vector<int>& ids) {
  std::string text;
  const auto status = processor.Decode(ids, &text);
  TORCH_CHECK(status.ok(), "tokenizer: SentencePiece must decode; got ", status.ToString(), " [SW0169]");
  return text;
}

int checked_id(const Processor& processor, int64_t id) {
  TORCH_CHECK_VALUE(id >= 0 && id < processor.GetPieceSize(),
                    "tokenizer: ids must be in its vocabulary, below ", processor.GetPieceSize(), "; got ",
                    id, " [SW0165]");
  return static_cast<int>(id);
}

/// Returns the first piece that decodes to nonempty text by itself.
std::optional<int> first_text_piece(const Processor& processor) {
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    if (!processor.IsByte(id) && !decode_with(processor, {id}).empty()) return id;
  }
  return std::nullopt;
}

/// Holds back byte pieces until the end of their run and decodes all other pieces at once. The library treats
/// the start of a text specially until a piece is more than the dropped space, so later pieces are decoded
/// after `text_piece`.
class SentencePieceStream : public StreamDecoder {
 public:
  SentencePieceStream(const Processor& processor, int text_piece)
      : processor_(processor), text_piece_(text_piece) {}

  std::string push(int64_t id) override {
    pending_.push_back(checked_id(processor_, id));
    return processor_.IsByte(pending_.back()) ? "" : decode_pending();
  }
  std::string finish() override { return decode_pending(); }

 private:
  std::string decode_pending() {
    if (pending_.empty()) return "";
    std::vector<int> ids = before_;
    ids.insert(ids.end(), pending_.begin(), pending_.end());
    const std::string added = decode_with(processor_, ids).substr(length_before_);
    if (!added.empty()) {
      before_.assign(1, text_piece_);
      length_before_ = decode_with(processor_, before_).size();
    } else if (before_.empty() && !processor_.IsControl(pending_.back())) {
      before_ = pending_;  // the leading space, which the library drops
    }
    pending_.clear();
    return added;
  }

  const Processor& processor_;
  int text_piece_;
  std::vector<int> before_, pending_;
  size_t length_before_ = 0;  // bytes of before_'s decoding
};

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& path)
    : processor_(std::make_unique<Processor>()) {
  const auto status = processor_->LoadFromSerializedProto(base::read_text(path));
  TORCH_CHECK_VALUE(status.ok() && processor_->GetPieceSize() > 0, path,
                    ": must be a SentencePiece model; got ", status.ToString(), " [SW0163]");
  const auto text_piece = first_text_piece(*processor_);
  TORCH_CHECK_VALUE(text_piece, path, ": must be a SentencePiece model; got one without text [SW0163]");
  text_piece_ = *text_piece;
  special_ids_ = {optional_id(processor_->bos_id()), optional_id(processor_->eos_id()),
                  optional_id(processor_->pad_id()), optional_id(processor_->unk_id())};
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
  return processor_->GetPieceSize();
}

std::optional<int64_t> SentencePieceTokenizer::id_of(const std::string& token) const {
  const int id = processor_->PieceToId(token);
  const bool is_found = id >= 0 && processor_->IdToPiece(id) == token;  // unknown pieces map to unk
  return is_found ? std::optional<int64_t>(id) : std::nullopt;
}

void SentencePieceTokenizer::encode_checked(std::string_view text, SpecialTokens specials,
                                            std::vector<int64_t>& ids) const {
  std::vector<int> found;
  const auto status = processor_->Encode(replace_invalid(text), &found);
  TORCH_CHECK(status.ok(), "tokenizer: SentencePiece must encode; got ", status.ToString(), " [SW0168]");
  const bool adds_specials = specials == SpecialTokens::with;
  if (adds_specials && adds_bos_) ids.push_back(*special_ids_.bos);
  ids.insert(ids.end(), found.begin(), found.end());
  if (adds_specials && adds_eos_) ids.push_back(*special_ids_.eos);
}

std::unique_ptr<StreamDecoder> SentencePieceTokenizer::stream(SpecialTokens) const {
  return std::make_unique<SentencePieceStream>(*processor_, text_piece_);
}

std::string SentencePieceTokenizer::decode(const std::vector<int64_t>& ids, SpecialTokens) const {
  std::vector<int> checked;
  checked.reserve(ids.size());
  for (const int64_t id : ids) checked.push_back(checked_id(*processor_, id));
  return decode_with(*processor_, checked);
}

}  // namespace shardwise::text

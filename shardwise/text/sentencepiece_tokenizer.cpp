#include "shardwise/text/sentencepiece_tokenizer.h"

#include <c10/util/Exception.h>
#include <sentencepiece_processor.h>

#include "shardwise/base/files.h"
#include "shardwise/text/json_fields.h"
#include "shardwise/text/model_directory.h"
#include "shardwise/text/special_ids.h"
#include "shardwise/text/utf8.h"

namespace shardwise::text {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

std::optional<int64_t> if_there(int id) {
  return id >= 0 ? std::optional<int64_t>(id) : std::nullopt;
}

std::string decode_with(const Processor& processor, const std::vector<int>& ids) {
  std::string text;
  const auto status = processor.Decode(ids, &text);
  TORCH_CHECK(status.ok(), "tokenizer: SentencePiece must decode; got ", status.ToString());
  return text;
}

int checked_id(const Processor& processor, int64_t id) {
  TORCH_CHECK_VALUE(id >= 0 && id < processor.GetPieceSize(),
                    "tokenizer: ids must be those of its tokens, below ", processor.GetPieceSize(), "; got ",
                    id);
  return static_cast<int>(id);
}

/// A piece that is text by itself.
std::optional<int> first_text_piece(const Processor& processor) {
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    if (!processor.IsByte(id) && !decode_with(processor, {id}).empty()) return id;
  }
  return std::nullopt;
}

/// Bytes wait for the end of their run, and the rest is decoded at once, behind `text_piece` where there was
/// text before: the library treats the beginning of a text in its own way, up to the first piece that is more
/// than the blank it drops.
class SentencePieceStream : public StreamDecoder {
 public:
  SentencePieceStream(const Processor& processor, int text_piece)
      : processor_(processor), text_piece_(text_piece) {}

  std::string push(int64_t id) override {
    waiting_.push_back(checked_id(processor_, id));
    return processor_.IsByte(waiting_.back()) ? "" : take_waiting();
  }
  std::string finish() override { return take_waiting(); }

 private:
  std::string take_waiting() {
    if (waiting_.empty()) return "";
    std::vector<int> ids = before_;
    ids.insert(ids.end(), waiting_.begin(), waiting_.end());
    const std::string added = decode_with(processor_, ids).substr(length_before_);
    if (!added.empty()) {
      before_.assign(1, text_piece_);
      length_before_ = decode_with(processor_, before_).size();
    } else if (before_.empty() && !processor_.IsControl(waiting_.back())) {
      before_ = waiting_;  // the blank that is dropped
    }
    waiting_.clear();
    return added;
  }

  const Processor& processor_;
  int text_piece_;
  std::vector<int> before_, waiting_;
  size_t length_before_ = 0;  // bytes that before_ alone gives
};

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const std::string& path)
    : processor_(std::make_unique<Processor>()) {
  const auto status = processor_->LoadFromSerializedProto(base::read_text(path));
  TORCH_CHECK_VALUE(status.ok() && processor_->GetPieceSize() > 0, path,
                    ": must be a model that SentencePiece reads; got ", status.ToString());
  const auto text_piece = first_text_piece(*processor_);
  TORCH_CHECK_VALUE(text_piece, path, ": must be a model that SentencePiece reads; got one without text");
  text_piece_ = *text_piece;
  special_ids_ = {if_there(processor_->bos_id()), if_there(processor_->eos_id()),
                  if_there(processor_->pad_id()), if_there(processor_->unk_id())};
  read_config(directory_of(path));
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::read_config(const std::string& directory) {
  const std::string path = directory + "/tokenizer_config.json";
  const auto object = read_object(path);
  const JsonPart config{object, path + ": "};
  check_added_tokens(config, directory);
  special_ids_ = named_special_ids(config, *this, special_ids_);
  adds_bos_ = config.flag("add_bos_token", false);
  adds_eos_ = config.flag("add_eos_token", false);
  if (adds_bos_ && !special_ids_.bos)
    refuse(config.label("add_bos_token"), "false without a bos_token", true);
  if (adds_eos_ && !special_ids_.eos)
    refuse(config.label("add_eos_token"), "false without an eos_token", true);
}

/// Tokens that are added to a model are looked for before the library sees the text.
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
    if (!text) refuse(decoder.label(id), "a string or an AddedToken", token);
    check_added_token(*text, id, decoder.label(id));
  }
}

void SentencePieceTokenizer::check_added_token(const std::string& token, const std::string& id,
                                               const std::string& label) const {
  const auto known = id_of(token);
  if (!known || std::to_string(*known) != id) refuse(label, "a token of the model, under its id", token);
}

int64_t SentencePieceTokenizer::vocab_size() const {
  return processor_->GetPieceSize();
}

std::optional<int64_t> SentencePieceTokenizer::id_of(const std::string& token) const {
  const int id = processor_->PieceToId(token);
  const bool is_there = id >= 0 && processor_->IdToPiece(id) == token;  // others are unk
  return is_there ? std::optional<int64_t>(id) : std::nullopt;
}

void SentencePieceTokenizer::encode_checked(std::string_view text, Specials specials,
                                            std::vector<int64_t>& ids) const {
  std::vector<int> found;
  const auto status = processor_->Encode(replace_invalid(text), &found);
  TORCH_CHECK(status.ok(), "tokenizer: SentencePiece must encode; got ", status.ToString());
  const bool is_whole = specials == Specials::kWith;
  if (is_whole && adds_bos_) ids.push_back(*special_ids_.bos);
  ids.insert(ids.end(), found.begin(), found.end());
  if (is_whole && adds_eos_) ids.push_back(*special_ids_.eos);
}

std::unique_ptr<StreamDecoder> SentencePieceTokenizer::stream(Specials) const {
  return std::make_unique<SentencePieceStream>(*processor_, text_piece_);
}

std::string SentencePieceTokenizer::decode(const std::vector<int64_t>& ids, Specials) const {
  std::vector<int> checked;
  checked.reserve(ids.size());
  for (const int64_t id : ids) checked.push_back(checked_id(*processor_, id));
  return decode_with(*processor_, checked);
}

}  // namespace shardwise::text

// Models, damaged ones, and the files next to them. tests/python/sentencepiece_test.py compares the ids and
// texts of trained and random models with the sentencepiece package.
#include "shardwise/text/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/error_text.h"
#include "tests/support/temporary.h"
#include "tests/text/sentencepiece_writer.h"

namespace shardwise::text::sentencepiece_tokenizer_test {
namespace {

using test::bytes_field, test::float_field, test::integer_field, test::piece_field;
using test::contains, test::error_text;
using test::normalizer_field, test::pieces_field, test::pieces_with_bytes, test::trainer_field;
using Ids = std::vector<int64_t>;
using Type = Piece::Type;

const std::string kBpeWithBytes = trainer_field(integer_field(3, 2) + integer_field(35, 1));

const std::string kUnknown = piece_field({"<unk>", 0, Type::unknown});

/// Returns a BPE model with byte pieces, controls <unk> <s> </s> and a few pieces.
const std::string& model() {
  static const std::string bytes =
      pieces_field(pieces_with_bytes(
          {"or", "\u2581w", "\u2581wor", "ds", "\u2581words", "\u2581", "w", "o", "r", "d", "s"})) +
      kBpeWithBytes;
  return bytes;
}

class SentencePieceTokenizers : public ::testing::Test {
 protected:
  SentencePieceTokenizers() { directory_.put("tokenizer.model", model()); }
  std::unique_ptr<Tokenizer> load() const { return load_tokenizer(directory_.path()); }
  void expect_error(const std::vector<std::string>& parts) const {
    const std::string error = error_text([&] { load(); });
    for (const std::string& part : parts) EXPECT_PRED2(contains, error, part);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(SentencePieceTokenizers, ConfigAddsBosAndEos) {
  const Ids words = load()->encode("words");
  directory_.put("tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>"})");
  Ids expected = words;
  expected.insert(expected.begin(), 1);
  EXPECT_EQ(load()->encode("words"), expected);
  directory_.put("tokenizer_config.json",
                 R"({"add_bos_token": true, "add_eos_token": true, "eos_token": {"content": "</s>"},
                  "pad_token": "<unk>"})");
  expected.push_back(2);
  EXPECT_EQ(load()->encode("words"), expected);
  Ids without;
  load()->encode("words", SpecialTokens::without, without);
  EXPECT_EQ(without, words);
  EXPECT_EQ(load()->special_ids().pad, 0);
}

// bos_token defines the token but does not add it, as in transformers 5.
TEST_F(SentencePieceTokenizers, AddNothingByDefault) {
  const Ids words = load()->encode("words");
  EXPECT_NE(words.at(0), 1);
  for (const char* config :
       {R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"})",
        R"({"add_bos_token": false})", R"({"add_bos_token": null})"}) {
    directory_.put("tokenizer_config.json", config);
    EXPECT_EQ(load()->encode("words"), words) << config;
  }
}

TEST_F(SentencePieceTokenizers, RejectInvalidConfigs) {
  directory_.put("tokenizer_config.json", R"({"add_bos_token": 1})");
  expect_error({"tokenizer_config.json: add_bos_token", "true or false"});
  directory_.put("tokenizer_config.json", R"({"bos_token": "<other>"})");
  expect_error({"tokenizer_config.json: bos_token must be a token of the vocabulary", "<other>"});
  auto pieces = pieces_with_bytes({"w"});
  pieces[1].text = "<other>";
  directory_.put("tokenizer.model", pieces_field(pieces) + kBpeWithBytes);
  directory_.put("tokenizer_config.json", R"({"add_bos_token": true})");
  expect_error({"add_bos_token must be false if bos_token is missing"});
}

TEST_F(SentencePieceTokenizers, RejectAddedTokens) {
  directory_.put("tokenizer_config.json",
                 R"({"added_tokens_decoder": {"1": {"content": "<s>"}, "2": "</s>"}})");
  directory_.put("added_tokens.json", R"({"</s>": 2})");
  EXPECT_GT(load()->vocab_size(), 259);
  directory_.put("added_tokens.json", R"({"</s>": 2, "<pad>": 330})");
  expect_error({R"(added_tokens.json: "<pad>" must be a token of the model with its id)"});
  directory_.put("added_tokens.json", R"({"</s>": 3})");
  expect_error({R"(added_tokens.json: "</s>" must be a token of the model)"});
  directory_.put("added_tokens.json", "{}");
  directory_.put("tokenizer_config.json", R"({"added_tokens_decoder": {"330": {"content": "<pad>"}}})");
  expect_error({"tokenizer_config.json: added_tokens_decoder.330 must be a token of the model", "<pad>"});
  directory_.put("tokenizer_config.json", R"({"added_tokens_decoder": {"1": {"content": "</s>"}}})");
  expect_error({"added_tokens_decoder.1", "</s>"});
  directory_.put("tokenizer_config.json", R"({"added_tokens_decoder": {"1": 5}})");
  expect_error({"added_tokens_decoder.1 must be a string or an AddedToken; got 5"});
}

/// The model's fields, and one that a later version may add, are read whatever their order and type.
TEST_F(SentencePieceTokenizers, ModelsNameTheirControls) {
  auto pieces = pieces_with_bytes({"w"});
  pieces[1].text = "<begin>";
  pieces[2].text = "<end>";
  pieces.push_back({"<fill>", 0, Type::control});
  const std::string bytes = pieces_field(pieces);
  const std::string unknown_field = test::varint(99 << 3 | 1) + std::string(8, '\x7f');  // 64 bits
  const auto ids_with = [&](const std::string& names) {
    directory_.put("tokenizer.model",
                   bytes + unknown_field + trainer_field(integer_field(3, 2) + integer_field(35, 1) + names));
    return load()->special_ids();
  };
  const std::string begin = bytes_field(46, "<begin>"), end = bytes_field(47, "<end>");
  const auto named = ids_with(begin + end + bytes_field(48, "<fill>"));
  EXPECT_EQ(named.bos, 1);
  EXPECT_EQ(named.eos, 2);
  EXPECT_EQ(named.pad, int64_t(pieces.size()) - 1);
  const auto unnamed = ids_with(bytes_field(46, "") + end);  // an empty name is the default one, <s>
  EXPECT_EQ(unnamed.bos, std::nullopt);
  EXPECT_EQ(unnamed.eos, 2);
}

// SentencePiece divides "\u2581words" by the scores: or, then \u2581w, then both, then ds.
TEST_F(SentencePieceTokenizers, MergeByScore) {
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("words"), Ids{*tokenizer->id_of("\u2581words")});
  EXPECT_EQ(tokenizer->encode("wor"), Ids{*tokenizer->id_of("\u2581wor")});
  EXPECT_EQ(tokenizer->encode("ord"),
            (Ids{*tokenizer->id_of("\u2581"), *tokenizer->id_of("or"), *tokenizer->id_of("d")}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("words w\u00e9")), "words w\u00e9");
}

TEST_F(SentencePieceTokenizers, AreStreamedByCharacters) {
  const auto tokenizer = load();
  const auto stream = tokenizer->stream(SpecialTokens::with);
  const auto byte = [&](int value) { return stream->push(3 + value); };
  EXPECT_EQ(stream->push(*tokenizer->id_of("\u2581")), "");  // the space that encoding adds
  EXPECT_EQ(byte(0xe2), "");
  EXPECT_EQ(byte(0x82), "");
  EXPECT_EQ(byte(0xac), "\u20ac");
  EXPECT_EQ(byte(0xe2), "");
  EXPECT_EQ(stream->push(2), "\ufffd");  // a control piece ends the run
  EXPECT_EQ(stream->push(*tokenizer->id_of("\u2581w")), " w");
  EXPECT_EQ(byte(0xf0), "");
  EXPECT_EQ(stream->finish(), "\ufffd");
}

// A prefix that ends between two pieces is a model with fewer pieces; every other one ends within a field.
TEST_F(SentencePieceTokenizers, RefuseTruncations) {
  std::string whole = kUnknown;
  size_t end_of_piece = whole.size();
  for (const char* text : {"a", "\u2581", "\u2581a"}) {
    whole += piece_field({text, -1});
    for (size_t length = end_of_piece + 1; length < whole.size(); ++length) {
      directory_.put("tokenizer.model", whole.substr(0, length));
      expect_error(
          {"tokenizer.model: must be a SentencePiece model; got a field that ends beyond its message"});
    }
    end_of_piece = whole.size();
  }
}

class DamagedModels : public SentencePieceTokenizers {
 protected:
  void expect_refused(const std::string& bytes, const std::string& part) {
    directory_.put("tokenizer.model", bytes);
    expect_error({"tokenizer.model", part});
  }
};

TEST_F(DamagedModels, AreNoMessages) {
  expect_refused("no model", "must be a SentencePiece model; got an unknown wire type");
  expect_refused(test::varint(1 << 3 | 2) + test::varint(100) + "short",
                 "a field that ends beyond its message");
  expect_refused(std::string(11, '\xff'), "an integer of more than 10 bytes");
  expect_refused(test::varint(2) + test::varint(0), "an invalid field number");
  expect_refused(test::varint(uint64_t{1} << 40) + test::varint(0), "an invalid field number");
  expect_refused(integer_field(1, 5), "a field of another type");
  expect_refused(bytes_field(1, float_field(1, 1)), "a field of another type");
}

TEST_F(DamagedModels, HaveInvalidPieces) {
  expect_refused("", "must have a piece of type 2 (unknown); got none");
  expect_refused(kUnknown + bytes_field(1, float_field(2, 1)), "pieces[1] must be of 1 to 1024 bytes; got 0");
  expect_refused(kUnknown + piece_field({std::string(1025, 'a')}),
                 "pieces[1] must be of 1 to 1024 bytes; got 1025");
  expect_refused(kUnknown + piece_field({"\xff"}), "pieces[1] must be UTF-8");
  expect_refused(kUnknown + piece_field({"a", std::numeric_limits<float>::quiet_NaN()}),
                 "pieces[1].score must be finite");
  expect_refused(kUnknown + piece_field({"a", 0, static_cast<Type>(7)}),
                 "pieces[1].type must be from 1 to 6; got 7");
  expect_refused(kUnknown + piece_field({"a"}) + piece_field({"a", 0, Type::control}),
                 "pieces must be unique");
  expect_refused(kUnknown + piece_field({"other", 0, Type::unknown}),
                 "pieces[1] must be the only piece of type 2");
  expect_refused(kUnknown + piece_field({"<0x41>", 0, Type::byte}), "in a model with byte_fallback");
  expect_refused(kUnknown + piece_field({"<0x4>", 0, Type::byte}) + kBpeWithBytes, "like <0x41>");
  expect_refused(kUnknown + piece_field({"<0x41>", 0, Type::byte}) + kBpeWithBytes, "got none for 0");
}

TEST_F(DamagedModels, HaveUnsupportedFeatures) {
  for (const int word_or_character : {3, 4})
    expect_refused(
        kUnknown + trainer_field(integer_field(3, word_or_character)),
        "trainer_spec.model_type must be 1 (unigram) or 2 (BPE); got " + std::to_string(word_or_character));
  expect_refused(kUnknown + bytes_field(5, bytes_field(2, "rules")),
                 "denormalizer_spec.precompiled_charsmap must be empty");
  expect_refused(kUnknown + trainer_field(bytes_field(44, "\xff")), "unk_surface must be UTF-8");
}

std::string unit(uint32_t value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string with_charsmap(const std::string& bytes) {
  return kUnknown + piece_field({"b"}) + piece_field({"\u2581"}) + normalizer_field(bytes_field(2, bytes));
}

TEST_F(DamagedModels, HaveInvalidNormalizationRules) {
  expect_refused(with_charsmap(unit(100) + unit(0)), "must be whole units of 4 bytes");
  expect_refused(with_charsmap(unit(0xffffffff) + unit(0) + "a"), "must be whole units of 4 bytes");
  expect_refused(with_charsmap(unit(5) + unit(0) + "abcd"), "must be whole units of 4 bytes");
  expect_refused(with_charsmap("ab"), "must be whole units of 4 bytes");
  expect_refused(with_charsmap(unit(4) + unit(0) + "\xff"),
                 "a replacement of precompiled_charsmap must be UTF-8");
  expect_refused(with_charsmap(unit(4) + unit(0) + std::string(1025, 'a')), "of at most 1024 bytes");
}

// A trie of one rule a -> b whose offsets and value are as given: 1 << 8 marks the end of a string, and the
// value is at the offset.
TEST_F(DamagedModels, CannotSearchBeyondTheirRules) {
  const auto encoded = [&](uint32_t root, uint32_t leaf_offset, uint32_t value) {
    std::vector<uint32_t> units(128, 0);
    units[0] = root;
    units[('a' ^ 1)] = 'a' | 1 << 8 | leaf_offset << 10;
    units[('a' ^ 1) ^ 2] = 1u << 31 | value;
    std::string trie;
    for (const uint32_t u : units) trie += unit(u);
    directory_.put("tokenizer.model",
                   with_charsmap(unit(uint32_t(trie.size())) + trie + std::string("b\0c", 3)));
    return load()->encode("a");
  };
  const Ids b{2, 1}, unknown{2, 0};
  EXPECT_EQ(encoded(1 << 10, 2, 0), b);
  EXPECT_EQ(encoded(1 << 10, 2, 3), unknown);  // a value beyond the replacements
  EXPECT_EQ(encoded(1 << 10, 2, 0x7fffffff), unknown);
  EXPECT_EQ(encoded(1 << 10, (1 << 21) - 1, 0), b);            // a value beyond the trie reads as 0
  EXPECT_EQ(encoded(0x3fffff << 10 | 1 << 9, 2, 0), unknown);  // children beyond the trie
}

// A rule a -> 1000 times b.
TEST_F(SentencePieceTokenizers, RulesLengthenTextOnlySoFar) {
  std::vector<uint32_t> units(128, 0);
  units[0] = 1 << 10;
  units['a' ^ 1] = 'a' | 1 << 8 | 2 << 10;
  units['a' ^ 1 ^ 2] = 1u << 31;
  std::string trie;
  for (const uint32_t u : units) trie += unit(u);
  directory_.put("tokenizer.model",
                 with_charsmap(unit(uint32_t(trie.size())) + trie + std::string(1000, 'b')));
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode(std::string(60, 'a')).size(), 60001u);
  EXPECT_PRED2(contains, error_text([&] { tokenizer->encode(std::string(1000, 'a')); }),
               "must lengthen a text of 1000 bytes to at most 97536");
}

TEST_F(SentencePieceTokenizers, LongStreamsWithoutTextAreFast) {
  constexpr int64_t kMany = 500000;
  directory_.put("tokenizer.model", model() + normalizer_field(integer_field(4, 1)));
  const auto tokenizer = load();
  const int64_t space = *tokenizer->id_of("\u2581");
  for (const int64_t id : {int64_t{2}, space}) {
    const auto stream = tokenizer->stream(SpecialTokens::with);
    std::string text;
    for (int64_t i = 0; i < kMany; ++i) text += stream->push(id);
    EXPECT_EQ(text, "");  // leading spaces are dropped
  }
}

}  // namespace
}  // namespace shardwise::text::sentencepiece_tokenizer_test

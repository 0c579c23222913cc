"""Ids and texts equal those of the sentencepiece package, for trained models and for random ones."""
import json
import random
import struct

import sentencepiece
from tokenizer_checks import CORPUS, IS_FULL, SPECIALS, TokenizerChecks, as_json, hash_of, tokenize
from tokenizer_texts import texts

MODELS = 1500 if IS_FULL else 24  # random ones
TEXTS = 150  # for each random model
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def integer(number, value):
    return varint(number << 3) + varint(value)


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece(text, score, kind):
    return field(1, field(1, text.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + integer(3, kind))


def random_text(draw, alphabet, longest):
    return "".join(draw.choice(alphabet) for _ in range(draw.randint(1, longest)))


def random_model(draw):
    """Returns a model over a small alphabet: many ways to divide a text, ties, pieces in pieces, every kind of piece."""
    alphabet = draw.choice(["ab▁", "abc▁▁", "aé▁語😀", "ab▁ "])
    has_bytes = draw.random() < 0.5
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    if has_bytes:
        pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    kinds = [NORMAL] * draw.choice([8, 30]) + [UNUSED] * draw.choice([0, 3]) + [USER_DEFINED] * draw.choice([0, 2])
    scores = draw.choice([[-1.0, -2.0], [-i / 7 for i in range(40)], [draw.uniform(-12, 1) for _ in range(40)]])
    known = {text for text, _, _ in pieces}
    for _ in range(draw.choice([4, 30, 120])):
        text = random_text(draw, alphabet, 6)
        if text not in known:
            known.add(text)
            pieces.append((text, draw.choice(scores), draw.choice(kinds)))
    if not any(kind == NORMAL for _, _, kind in pieces):
        pieces.append(("z", -1.0, NORMAL))
    trainer = integer(3, draw.choice([UNIGRAM, BPE])) + integer(24, draw.random() < 0.2) + integer(35, has_bytes)
    if draw.random() < 0.3:
        trainer += field(44, draw.choice(["", "?", " ⁇ "]).encode())
    normalizer = b"".join(integer(number, draw.random() < 0.7) for number in (3, 4, 5))
    return b"".join(piece(*each) for each in pieces) + field(2, trainer) + field(3, normalizer), alphabet


class SentencepieceTest(TokenizerChecks):
    def check_trained(self, name, **options):
        directory = self.directory / name
        directory.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for line in CORPUS.split("\n") if 0 < len(line) < 2000 and "\0" not in line),
            model_prefix=str(directory / "tokenizer"), vocab_size=2000, minloglevel=2, num_threads=1, **options)
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(directory / "tokenizer.model"))
        self.check(name, directory, theirs.encode, lambda ids, skips: theirs.decode(ids), theirs.encode)

    def test_bpe_with_byte_fallback(self):
        self.check_trained("llama", model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                           remove_extra_whitespaces=False, split_digits=True, character_coverage=0.98,
                           user_defined_symbols=["<|start|>"])

    def test_bpe_with_normalization_rules(self):
        self.check_trained("bpe", model_type="bpe", normalization_rule_name="nfkc_cf", character_coverage=0.98,
                           user_defined_symbols=["thing", "Straße"])

    def test_bpe_with_spaces_as_suffixes(self):
        self.check_trained("suffix", model_type="bpe", treat_whitespace_as_suffix=True, character_coverage=0.98,
                           allow_whitespace_only_pieces=True)

    def test_unigram(self):
        self.check_trained("unigram", model_type="unigram", character_coverage=0.98)

    def test_unigram_with_byte_fallback(self):
        self.check_trained("bytes", model_type="unigram", character_coverage=0.98, byte_fallback=True,
                           add_dummy_prefix=False, normalization_rule_name="nmt_nfkc_cf",
                           user_defined_symbols=["<|left|>", "thing"])

    def test_pieces_with_nul(self):
        """As in InternLM2's vocabulary."""
        pieces = [("<unk>", 0.0, UNKNOWN), ("\0", -1.0, NORMAL), ("a", -2.0, NORMAL), ("a\0", -3.0, NORMAL)]
        model = b"".join(piece(*each) for each in pieces) + field(2, integer(3, BPE))
        self.check_model("nul", model, ["\0", "a\0", "\0a", "aa\0\0", "b\0"])

    def test_random_models(self):
        for seed in range(MODELS):
            with self.subTest(seed=seed):
                self.check_random(seed)

    def check_random(self, seed):
        draw = random.Random(seed)
        model, alphabet = random_model(draw)
        strings = [random_text(draw, alphabet + " ", 40) for _ in range(TEXTS)] + texts(TEXTS, CORPUS, SPECIALS, seed)
        self.check_model(seed, model, strings)

    def check_model(self, name, model, strings):
        directory = self.directory / str(name)
        directory.mkdir()
        (directory / "tokenizer.model").write_bytes(model)
        theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
        expected = [theirs.encode(string) for string in strings]
        self.equal(name, strings, expected, tokenize(directory, ["--json-lines"], as_json(strings)))
        draw = random.Random(hash_of(str(name)))
        size = theirs.get_piece_size()
        ids = [[draw.randrange(size) for _ in range(draw.randint(1, 12))] for _ in range(TEXTS)] + expected
        self.equal(name, ids, [theirs.decode(each) for each in ids],
                   tokenize(directory, ["--decode"], [json.dumps(each).encode() for each in ids]))
        self.count(len(strings), len(ids))

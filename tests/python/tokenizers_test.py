"""Ids and texts equal those of the tokenizers package, for every supported kind of tokenizer.json."""
import json
import subprocess

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from error_codes import without_code
from tokenizer_checks import CORPUS, PROGRAM, SPECIALS, TokenizerChecks, as_json, tokenize
from tokenizer_texts import is_known_to_all, texts

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def lines_of(text):
    return [line + "\n" for line in text.split("\n")]


class TokenizersTest(TokenizerChecks):
    def check_json(self, name, tokenizer, edit=lambda file: None):
        path = self.directory / name
        path.mkdir()
        file = json.loads(tokenizer.to_str())
        edit(file)
        (path / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False))
        theirs = Tokenizer.from_file(str(path / "tokenizer.json"))
        self.check(name, path, lambda text: theirs.encode(text).ids,
                   lambda ids, skips: theirs.decode(ids, skip_special_tokens=skips),
                   lambda text: theirs.encode(text, add_special_tokens=False).ids)

    def byte_level(self, pre_tokenizer, normalizer=None, vocab_size=3000, **model):
        tokenizer = Tokenizer(models.BPE(**model))
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(lines_of(CORPUS), trainers.BpeTrainer(
            vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
            special_tokens=["<|endoftext|>"]))
        return tokenizer

    def test_gpt2(self):
        tokenizer = self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        self.check_json("gpt2", tokenizer)

    def test_gpt2_with_a_prefix_space_and_merges_as_strings(self):
        def as_strings(file):
            file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]

        self.check_json("gpt2-prefix", self.byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), as_strings)

    def split(self, pattern):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def test_llama3(self):
        tokenizer = self.byte_level(self.split(LLAMA3), ignore_merges=True)
        tokenizer.add_special_tokens(["<s>", "</s>"])
        template = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                                 special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])

        def drop_merges(file):  # so that ignore_merges shows: whole words whose last merge is not there
            file["model"]["merges"] = file["model"]["merges"][:-300]

        self.check_json("llama3", tokenizer, drop_merges)

    def test_qwen2(self):
        tokenizer = self.byte_level(self.split(QWEN2), normalizer=normalizers.NFC())
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        tokenizer.add_special_tokens(["<|start|>", "</s>"])
        self.check_json("qwen2", tokenizer)

    def test_other_unicode_forms_and_splits(self):
        pre = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split("\n", "removed"),
            pre_tokenizers.Split(Regex(r"\p{P}+"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"[\s\u3000]+"), "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"\w"), "contiguous", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        form = normalizers.Sequence([normalizers.NFKD(), normalizers.NFKC(),
                                     normalizers.Replace(Regex(r"[\t ]+"), " "), normalizers.NFD()])
        self.check_json("forms", self.byte_level(pre, normalizer=form))

    def test_patterns(self):
        """Removes the matches of a pattern, for every character that both know, and for texts with difficult case folding."""
        every = [chr(c) for c in range(0x20000) if is_known_to_all(chr(c))]
        strings = ["".join(every[i:i + 500]) for i in range(0, len(every), 500)]
        strings += texts(300, CORPUS, SPECIALS, seed=3)
        vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        patterns = [
            r"[\p{Han}]+", r"\p{Hiragana}|[\p{Katakana}\p{Bopomofo}]", r"\P{Latin}", r"[^\p{Greek}\p{Cyrl}]+", r"\w+", r"\W",
            r"[\w-]", r"[-\s]", r"\d", r"\D\S", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"'(?i:[sdmt]|ll|ve|re)",
            r"(?i:kelvin|a\s\d)", r"[\p{Alphabetic}\p{M}]", r"\p{Emoji}", r"\p{Extended_Pictographic}", r"\p{Hex_Digit}",
            r"\p{Ideographic}", r"\p{Join_Control}", r"\p{Lowercase}", r"\p{Uppercase}", r"\p{White_Space}", r"\p{Lu}\p{Ll}*",
            r"[\p{Lt}\p{Lm}\p{Lo}]", r"[\p{M}\p{Mn}]", r"[\p{Z}\p{C}]", r"\p{S}|\p{No}"]
        for i, pattern in enumerate(patterns):
            tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(pattern), "removed"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            tokenizer.decoder = decoders.ByteLevel()
            directory = self.directory / str(i)
            directory.mkdir()
            tokenizer.save(str(directory / "tokenizer.json"))
            self.equal(pattern, strings, [tokenizer.encode(text).ids for text in strings],
                       tokenize(directory, ["--json-lines"], as_json(strings)))

    def test_added_tokens_of_every_kind(self):
        tokenizer = self.byte_level(self.split(QWEN2), normalizer=normalizers.NFC())
        tokenizer.add_special_tokens([AddedToken("<|left|>", lstrip=True), AddedToken("<|right|>", rstrip=True),
                                      AddedToken("<s>", lstrip=True, rstrip=True), AddedToken("<|", normalized=False)])
        tokenizer.add_tokens([AddedToken("thing", single_word=True), AddedToken("Straße", single_word=True, lstrip=True),
                              AddedToken("e\u0301"), AddedToken("<|word|>", normalized=False), AddedToken("  "),
                              AddedToken("\n\n", normalized=False), AddedToken("a b c", rstrip=True)])
        self.check_json("added", tokenizer)

    def sentencepiece_like(self, **model):
        return Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))

    def train_fallback(self, tokenizer, with_bytes=True):
        names = [f"<0x{byte:02X}>" for byte in range(256)] if with_bytes else []
        tokenizer.train_from_iterator(lines_of(CORPUS), trainers.BpeTrainer(
            vocab_size=3000, limit_alphabet=400, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *names]))

        def bytes_are_no_added_tokens(file):
            file["added_tokens"] = [token for token in file["added_tokens"] if not token["content"].startswith("<0x")]

        return bytes_are_no_added_tokens

    def bos_template(self, tokenizer):
        return processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[
            ("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))])

    def test_llama2_in_the_older_conversion(self):
        tokenizer = self.sentencepiece_like()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")  # while it learns
        edit = self.train_fallback(tokenizer)
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                               decoders.Strip(" ", 1, 0)])
        tokenizer.post_processor = self.bos_template(tokenizer)

        def pre_tokenizer_is_null(file):
            edit(file)
            file["pre_tokenizer"] = None
            file["added_tokens"][1]["normalized"] = True  # <s>, as older files have it

        self.check_json("llama2", tokenizer, pre_tokenizer_is_null)

    def test_mistral_with_a_metaspace(self):
        for scheme, split in (("first", False), ("always", True), ("never", True)):
            with self.subTest(scheme=scheme):
                tokenizer = self.sentencepiece_like()
                tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
                edit = self.train_fallback(tokenizer)
                tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
                if split:
                    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
                else:
                    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
                tokenizer.post_processor = self.bos_template(tokenizer)
                self.check_json(f"mistral-{scheme}", tokenizer, edit)

    def test_unknown_characters_with_merges_over_blanks(self):
        for fuses in (False, True):
            with self.subTest(fuses=fuses):
                tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuses))
                tokenizer.normalizer = normalizers.Replace(" ", "▁")  # merges cross blanks: words cannot be cut there
                edit = self.train_fallback(tokenizer, with_bytes=False)
                tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
                self.check_json(f"unk-{fuses}", tokenizer, edit)

    def test_invalid_ids(self):
        for ids, got in (("[18446744073709551615]", "[18446744073709551615]"), ("[1, 2.0]", "[1,2.0]"), ("[256]", "256")):
            done = subprocess.run([PROGRAM, "tokenize", "--tokenizer", "bytes", "--decode"], input=ids.encode(),
                                  capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, b""))
            self.assertTrue(without_code(done.stderr.decode()).endswith(f"got {got}\n"), done.stderr)

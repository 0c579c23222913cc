"""Compares `shardwise tokenize` with a reference, on difficult texts and on lists of ids."""
import json
import os
import random
import subprocess
import tempfile
import unittest
from pathlib import Path

from tokenizer_texts import broken_lines, texts

PROGRAM = os.environ["SHARDWISE_PROGRAM"]
IS_FULL = os.environ.get("SHARDWISE_TEST_FULL") == "1"
STRINGS = 20000 if IS_FULL else 2400  # of each kind of tokenizer
BROKEN = 400
ROOT = Path(__file__).resolve().parents[2]
SPECIALS = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<|start|>", "<|left|>", "<|right|>", "<|word|>", "thing", "Straße"]


def corpus():
    """Returns sources and documents of this repository, and random texts in many scripts."""
    files = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("shardwise/**/*.cpp")])
    text = "\n".join(path.read_text() for path in files)[:400_000]
    return text + "\n".join(texts(3000, text, ["<s>"], seed=1))


CORPUS = corpus()


def tokenize(directory, flags, lines):
    """Returns the program's answer to each line of bytes."""
    done = subprocess.run([PROGRAM, "tokenize", "--tokenizer", str(directory), *flags], input=b"".join(
        line + b"\n" for line in lines), capture_output=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode())
    return [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]


def as_json(values):
    return [json.dumps(value, ensure_ascii=value_is_odd(value)).encode() for value in values]


def value_is_odd(value):
    return len(value) % 2 == 1  # both spellings of JSON


def hash_of(name):
    return sum(name.encode())


class TokenizerChecks(unittest.TestCase):
    kinds = strings = lists = 0  # compared

    @classmethod
    def tearDownClass(cls):
        print(f"\ncovered: {cls.strings} strings and {cls.lists} lists of ids by {cls.kinds} kinds of tokenizer, "
              "as their references encode and decode them")

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)

    def check(self, name, directory, encode, decode, plain):
        """encode(text), decode(ids), and plain(text) without special tokens are the reference's."""
        strings = texts(STRINGS, CORPUS, SPECIALS, seed=hash_of(name))
        expected = [encode(text) for text in strings]
        self.equal(name, strings, expected, tokenize(directory, ["--json-lines"], as_json(strings)))
        self.equal(name, strings, [plain(text) for text in strings],
                   tokenize(directory, ["--json-lines", "--no-special-tokens"], as_json(strings)))
        ids = expected + self.shuffled(expected, name)
        for skips in (False, True):
            flags = ["--decode"] + (["--no-special-tokens"] if skips else [])
            self.equal(name, ids, [decode(each, skips) for each in ids],
                       tokenize(directory, flags, [json.dumps(each).encode() for each in ids]))
        lines = broken_lines(BROKEN, CORPUS, SPECIALS, seed=hash_of(name) + 1)
        self.equal(name, lines, [encode(line.decode("utf-8", "replace")) for line in lines],
                   tokenize(directory, ["--lines"], lines))
        self.count(len(strings) + len(lines), len(ids))

    @classmethod
    def count(cls, strings, lists):
        cls.kinds += 1
        cls.strings += strings
        cls.lists += lists

    @staticmethod
    def shuffled(lists, name):
        """Returns id lists that no text produces: incomplete characters, bytes in any order."""
        draw = random.Random(hash_of(name) + 2)
        everything = [id for each in lists for id in each]
        everything += [0, 1, 2] * (len(everything) // 30)  # controls, where there are any
        return [draw.sample(everything, draw.randint(1, 12)) for _ in range(600)]

    def equal(self, name, inputs, expected, got):
        self.assertEqual(len(expected), len(got), name)
        for given, right, ours in zip(inputs, expected, got):
            self.assertEqual(right, ours, f"{name}: {given!r}")

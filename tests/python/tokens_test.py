"""Training on a tokenizer's ids: from text, from a file of ids, resumed, and used by `generate`."""
import json
import subprocess

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from parity import PROGRAM, ParityTest, random_llama, read_log, run

TEXT = "Where a value lives is part of its type, so a forgotten reduction does not compile. — naïve\n" * 40
FLAGS = ("--seq-len", 16, "--batch-size", 2, "--lr", 1e-3)


class TokensTest(ParityTest):
    def setUp(self):
        super().setUp()
        self.text = self.directory / "text"
        self.text.write_text(TEXT)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
        self.tokenizer.save_pretrained(self.directory / "tokenizer")
        random_llama(80, vocab_size=len(self.tokenizer)).save_pretrained(self.directory / "model")
        self.model = self.directory / "model/config.json"

    def losses(self, name, *flags):
        run(PROGRAM, "train", *FLAGS, *flags, "--log", self.directory / name)
        return [record["loss"] for record in read_log(self.directory / name) if "loss" in record]

    def test_training(self):
        encoded = ("--text", self.text, "--tokenizer", self.directory / "tokenizer")
        whole = self.losses("a", *encoded, "--model-config", self.model, "--steps", 4, "--save", self.directory / "saved")
        self.assertEqual(len(whole), 4)

        run(PROGRAM, "tokenize", *encoded, "--out", self.directory / "ids")
        self.assertEqual(self.losses("b", "--tokens", self.directory / "ids", "--model-config", self.model, "--steps", 4,
                                     "--tp", 1), whole)
        as_bytes = self.losses("c", "--text", self.text, "--model-config", self.model, "--steps", 4)
        self.assertNotEqual(as_bytes, whole)

        saved = self.directory / "saved/latest"
        for name in ("tokenizer.json", "tokenizer_config.json"):
            self.assertEqual((saved / name).read_bytes(), (self.directory / "tokenizer" / name).read_bytes())
        result = json.loads(run(PROGRAM, "generate", "--model", saved, "--prompt", "Where a value", "--max-new-tokens", 6,
                                "--json", "--tp", 2))
        self.assertEqual(result["prompt_ids"], self.tokenizer("Where a value").input_ids)
        self.assertEqual(result["text"], self.tokenizer.decode(result["token_ids"], skip_special_tokens=True))

    def test_invalid_utf8_is_counted(self):
        self.text.write_bytes(TEXT.encode() + b"\xff\xc3\n")
        command = [PROGRAM, "train", *FLAGS, "--text", self.text, "--model-config", self.model, "--steps", 1, "--tp", 2]

        def warnings(*flags):
            done = subprocess.run([str(part) for part in (*command, *flags)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [line for line in done.stderr.splitlines() if "UTF-8" in line]

        warning, = warnings("--tokenizer", self.directory / "tokenizer")
        self.assertTrue(warning.startswith("warning: train: the text should be UTF-8; got 2 other bytes, the first at "
                                           f"offset {len(TEXT.encode())} of {self.text}; the tokenizer replaces"), warning)
        self.assertEqual(warnings(), [])

    def test_resuming_ids_of_an_unnamed_tokenizer(self):
        """The checkpoint records that the tokenizer was not bytes."""
        run(PROGRAM, "tokenize", "--text", self.text, "--tokenizer", self.directory / "tokenizer", "--out", self.directory / "ids")
        tokens = ("--tokens", self.directory / "ids")
        whole = self.losses("a", *tokens, "--model-config", self.model, "--steps", 4)
        self.losses("b", *tokens, "--model-config", self.model, "--steps", 4, "--stop-after", 2, "--save",
                    self.directory / "saved")
        resume = ("--resume", self.directory / "saved", "--steps", 4)
        self.assertEqual(self.losses("c", *tokens, *resume), whole[2:])
        refused = subprocess.run([str(part) for part in (PROGRAM, "train", *FLAGS, "--text", self.text, *resume)],
                                 capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--tokenizer must be the resumed checkpoint's", refused.stderr)

    def test_resuming(self):
        """The checkpoint's tokenizer is the default, and any other one is rejected."""
        encoded = ("--text", self.text, "--tokenizer", self.directory / "tokenizer")
        whole = self.losses("a", *encoded, "--model-config", self.model, "--steps", 4)
        self.losses("b", *encoded, "--model-config", self.model, "--steps", 4, "--stop-after", 2, "--save",
                    self.directory / "saved")
        resume = ("--resume", self.directory / "saved", "--steps", 4)
        self.assertEqual(self.losses("c", "--text", self.text, *resume), whole[2:])
        refused = subprocess.run([str(part) for part in (PROGRAM, "train", *FLAGS, "--text", self.text, "--tokenizer",
                                                         "bytes", *resume)], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--tokenizer must be the resumed checkpoint's", refused.stderr)

"""Shared code of the comparisons with transformers: random models, shardwise's programs, and files for both."""
import copy
import json
import math
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()

PROGRAM = os.environ["SHARDWISE_PROGRAM"]
TOOL = os.environ["PARITY_TOOL"]


def run_bytes(*command):
    """Runs a program of shardwise and returns its output; fails with its error line."""
    done = subprocess.run([str(part) for part in command], capture_output=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{command[:2]} exited with {done.returncode}: {done.stderr.decode().strip()}")
    return done.stdout


def run(*command):
    return run_bytes(*command).decode()


# Uneven over 2, 3 and 4 ranks if the family allows it.
SIZES = dict(vocab_size=127, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=512,
             bos_token_id=None, eos_token_id=None)
GROUPED = SIZES | dict(num_key_value_heads=3, head_dim=8, intermediate_size=101)
FAMILIES = {
    "llama": GROUPED,
    "gpt2": SIZES | dict(n_inner=101),
    "mistral": GROUPED | dict(sliding_window=7),
    "qwen2": GROUPED | dict(use_sliding_window=True, max_window_layers=1, sliding_window=9),
    "qwen3": GROUPED | dict(head_dim=10),
    "phi3": GROUPED | dict(sliding_window=7, pad_token_id=None),
}


def random_model(family, seed, **fields):
    """Returns an fp32 model with activations of order one and random norms and biases."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(FAMILIES[family] | fields))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            is_matrix = parameter.dim() == 2
            mean = 0.0 if is_matrix or parameter.mean() == 0 else 1.0
            parameter.normal_(mean, 1 / math.sqrt(parameter.shape[-1]) if is_matrix else 0.2)
    return model


def random_llama(seed, **fields):
    return random_model("llama", seed, **fields)


class ParityTest(unittest.TestCase):
    """A test with a temporary directory."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="shardwise-parity-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def our_logits(self, model_directory, ids):
        """Returns the logits [b, s, v] of `ids` [b, s] for 1 to 4 ranks, TP and TP+SP, by name; bit-equal on all ranks."""
        save_file({"ids": ids.t().contiguous()}, self.directory / "ids")
        run(TOOL, "logits", model_directory, self.directory / "ids", self.directory / "logits")
        logits = {name: value.transpose(0, 1) for name, value in load_file(self.directory / "logits").items()}
        (self.directory / "logits").unlink()
        return logits

    def save_rounded(self, model, dtype, max_shard_size="1GB"):
        """Saves the model in `dtype` and returns transformers' fp32 model of the rounded weights."""
        directory = self.directory / "model"
        shutil.rmtree(directory, ignore_errors=True)
        copy.deepcopy(model).to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
        stored = {value.dtype for path in directory.glob("*.safetensors") for value in load_file(path).values()}
        self.assertEqual(stored, {dtype})
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def windows(self, text, seq_len, seed, count):
        """Returns the first `count` training windows, [count, seq_len + 1]."""
        run(TOOL, "windows", text, seq_len, seed, count, self.directory / "windows")
        return load_file(self.directory / "windows")["windows"]


def read_log(path):
    """Returns the records of the steps, without the planned memory."""
    return [record for line in Path(path).read_text().splitlines() if "step" in (record := json.loads(line))]

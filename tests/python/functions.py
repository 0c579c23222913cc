"""What the tests of `import shardwise` share: the program, a small model, and a directory for each test."""
import contextlib
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ["SHARDWISE_PROGRAM"]
SMALL = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}


def printed_by(*command):
    done = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    return done.stdout


class Directory(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="shardwise-functions-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def model(self):
        """Trains a step of a small model; returns its directory."""
        config, text, out = (self.directory / name for name in ("small.json", "text", "run"))
        config.write_text(json.dumps(SMALL | {"vocab_size": 256}))
        text.write_text("A text of some letters. " * 200)
        printed_by("train", "--model-config", config, "--text", text, "--seq-len", 16, "--batch-size", 2, "--steps", 1,
                   "--save", out, "--json")
        return out

    def script(self, text, name="shardwise"):
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    @contextlib.contextmanager
    def environment(self, **variables):
        before = dict(os.environ)
        os.environ.update(variables)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

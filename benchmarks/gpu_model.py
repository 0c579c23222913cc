"""Times a training step and a decoded token of a model of 1B parameters on a GPU, in one interleaved run.

    python3 benchmarks/gpu_model.py --program build/shardwise [--rounds N] [--json]
    .venv-test/bin/python benchmarks/gpu_model.py --program build/shardwise --check

The model is Llama 3.2 1B with random weights, in bf16. Training: `shardwise train` beside PyTorch (gpu_llama.py), eager and
through torch.compile, with the same batch, main weights and AdamW states in fp32. Decoding: `shardwise generate`, one sequence,
beside reading its weights and cached keys and values once at the speed of a copy. A time is the median over rounds.
--check does all of it once, with a tiny model on the emulated device and the CPU.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit("gpu_model: needs Python's torch; got none")

import gpu_llama

PROMPT_TOKENS = 32


@dataclasses.dataclass(frozen=True)
class Size:
    """What is run on a device."""

    device: str  # of --device
    config: dict
    batch: int  # sequences
    seq_len: int
    steps: int  # of a run; the first third is not timed
    new_tokens: int


def config_of(**sizes):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 131072,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": True,
            "rope_theta": 500000.0, "attention_bias": False, "mlp_bias": False, **sizes}


ON_GPU = Size("cuda", config_of(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                num_attention_heads=32, num_key_value_heads=8, head_dim=64),
              batch=4, seq_len=2048, steps=12, new_tokens=256)
TINY = Size("emulated", config_of(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, head_dim=16),
            batch=2, seq_len=32, steps=3, new_tokens=6)


class Program:
    """`shardwise`, with files of its own in a directory."""

    def __init__(self, path, size, directory):
        self._path, self._size, self._directory = path, size, pathlib.Path(directory)
        self._config, self._text, self._log = (str(self._directory / name) for name in ("config.json", "text", "log"))
        pathlib.Path(self._config).write_text(json.dumps(size.config))
        pathlib.Path(self._text).write_bytes(bytes(range(256)) * (size.batch * (size.seq_len + 1) * (size.steps + 2) // 256 + 1))

    def _run(self, *words):
        done = subprocess.run([self._path, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"gpu_model: {' '.join(words[:1])} must succeed; got exit code {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def step_seconds(self):
        """Trains; returns the median seconds of a step."""
        size = self._size
        self._run("train", "--model-config", self._config, "--text", self._text, "--tokenizer", "bytes", "--dtype", "bf16",
                  "--seq-len", str(size.seq_len), "--batch-size", str(size.batch), "--steps", str(size.steps), "--device",
                  size.device, "--log", self._log)
        lines = [json.loads(line) for line in pathlib.Path(self._log).read_text().splitlines()]
        steps = [line["step_ms"] / 1e3 for line in lines if "step_ms" in line]
        return statistics.median(steps[size.steps // 3:])

    def token_seconds(self):
        """Generates; returns the mean seconds of a token and the bytes of the weights."""
        size = self._size
        ids = ",".join(str(1 + i % 200) for i in range(PROMPT_TOKENS))
        out = json.loads(self._run("generate", "--model", str(self._directory), "--load-format", "dummy", "--dtype", "bf16",
                                   "--prompt-ids", ids, "--max-new-tokens", str(size.new_tokens), "--ignore-eos", "--device",
                                   size.device, "--json"))
        return out["decode"]["seconds"] / out["decode"]["tokens"], sum(out["load"]["weight_bytes"])


def read_bytes(size, weight_bytes):
    """Returns what a token reads: all weights once (the tied embedding is the head), and half of the cached rows."""
    config = size.config
    row = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 2
    return weight_bytes + row * (PROMPT_TOKENS + size.new_tokens // 2)


def copy_bandwidth(device):
    """Returns the bytes per second that a copy of 1 GiB reads and writes; of 1 MiB on the CPU."""
    n = (1 << 30) if device == "cuda" else (1 << 20)
    source, target = (torch.empty(n, dtype=torch.uint8, device=device) for _ in range(2))
    return 2 * n / statistics.median(gpu_llama.seconds_of(lambda: target.copy_(source), device) for _ in range(10))


def measure(options, size, directory):
    torch_device = "cuda" if size.device == "cuda" else "cpu"
    program = Program(options.program, size, directory)
    runs = {"shardwise": program.step_seconds,
            "eager": lambda: gpu_llama.step_seconds(size, torch_device, compiled=False)}
    if not options.check:
        runs["compiled"] = lambda: gpu_llama.step_seconds(size, torch_device, compiled=True)
    steps, tokens = {name: [] for name in runs}, []
    for number in range(options.rounds):
        for name, run in runs.items():
            print(f"gpu_model: round {number + 1}: a training step, {name}", file=sys.stderr)
            steps[name].append(run())
        print(f"gpu_model: round {number + 1}: a token", file=sys.stderr)
        seconds, weight_bytes = program.token_seconds()
        tokens.append(seconds)
        if weight_bytes != 2 * (parameters := gpu_llama.parameters(size)):
            sys.exit(f"gpu_model: the peer must have the program's parameters, {weight_bytes // 2}; got {parameters}")
    step = {name: statistics.median(times) for name, times in steps.items()}
    token, limit = statistics.median(tokens), read_bytes(size, weight_bytes) / copy_bandwidth(torch_device)
    return {"step_seconds": step, "eager / ours": step["eager"] / step["shardwise"],
            **({"compiled / ours": step["compiled"] / step["shardwise"]} if "compiled" in step else {}),
            "token_seconds": token, "limit of bandwidth / ours": limit / token}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="shardwise of the build")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is run [3]")
    parser.add_argument("--check", action="store_true", help="run a tiny model once without a GPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.rounds < 1:
        sys.exit(f"gpu_model: --rounds must be at least 1; got {options.rounds}")
    if not options.check and not torch.cuda.is_available():
        sys.exit("gpu_model: needs a GPU; got none")
    if options.check:
        options.rounds = 1
    with tempfile.TemporaryDirectory() as directory:
        results = measure(options, TINY if options.check else ON_GPU, directory)
    if options.check:
        print("gpu_model: the program and its peer ran")
    elif options.json:
        print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, **results}))
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.rounds} rounds\n")
        for name, value in results.items():
            print(f"{name}: " + (", ".join(f"{k} {v:.3g}" for k, v in value.items()) if isinstance(value, dict) else f"{value:.3g}"))


if __name__ == "__main__":
    main()

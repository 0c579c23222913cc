"""The numbers of the figures: what the program prints as JSON, and recorded measurements."""
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs/figures/data"
PROGRAM = os.environ.get("SHARDWISE_PROGRAM", str(ROOT / "build/shardwise"))


@cache
def run(*arguments):
    """Returns the JSON that the program prints."""
    try:
        done = subprocess.run([PROGRAM, *arguments, "--json"], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"figures: {PROGRAM} must be the program; {error.strerror}; run make build, or set SHARDWISE_PROGRAM")
    if done.returncode != 0:
        sys.exit(f"figures: shardwise {' '.join(arguments)} must succeed; got exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def words(flags):
    return [word for flag, value in flags.items() for word in ("--" + flag.replace("_", "-"), str(value))]


class Shapes:
    """What the ranks of a block hold and send: `plan --shapes`. The model is trained in bf16."""

    def __init__(self, model, tp, seq_len):
        self.found = run("plan", "--shapes", *words({"model": model, "tp": tp, "seq_len": seq_len}))
        self.model, self.tp, self.seq_len = model, tp, seq_len
        self.tensors = {tensor["tensor"]: tensor for tensor in self.found["tensors"]}

    def shape(self, name):
        return self.tensors[name]["shape"]

    def ranges(self, name, rank):
        return self.tensors[name]["ranges"][rank]

    def local(self, name, rank=0):
        """The sizes of the rank's shard."""
        tensor = self.tensors[name]
        shape = list(tensor["shape"])
        if tensor["ranges"]:
            shape[tensor["dim"]] = sum(end - begin for begin, end in tensor["ranges"][rank])
        return shape

    def calls(self, sequence_parallel, backward, collective):
        """(calls, bytes of one call that rank 0 sends) of a collective of the block; (0, 0) if it has none."""
        name = "backward" if backward else "forward"
        for one in self.found["block_collectives"]:
            if (one["sequence_parallel"], one["phase"], one["collective"]) == (sequence_parallel, name, collective):
                return one["calls"], one["bytes"][0] // one["calls"]
        return 0, 0


def one_plan(degrees, **flags):
    """Returns the whole answer, and in "plan" the one plan with these degrees besides those pinned by flags."""
    found = run("plan", *words(flags))
    plans = [plan for plan in found["plans"] if degrees.items() <= plan["degrees"].items()]
    if len(plans) != 1:
        sys.exit(f"figures: plan {flags} must have one plan with {degrees}; got {len(plans)}")
    return found | {"plan": plans[0]}


def recorded(name):
    return json.loads((DATA / name).read_text())


def loaded(path):
    """Returns the JSON of a file that the user names."""
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"figures: --from must be a JSON file; got {path}: {error}")


def size_text(sizes):
    return "[" + ", ".join(map(str, sizes)) + "]"


def range_text(ranges):
    return ", ".join(f"{begin}:{end}" for begin, end in ranges)


def bytes_text(count):
    """1 MB = 10^6 bytes."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"

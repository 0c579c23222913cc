"""Trains a small model, runs it in bf16, int8 and int4 at TP 1 and 2, and writes perplexity, memory and speed to
benchmarks/results/.

    .venv/bin/python benchmarks/quantized.py [--model DIR] [--preset tiny] [--steps N] [--text-bytes N] [--tokens N] [--rounds N]

The text is the Python standard library; perplexity is measured on 2 % of its files, which are not trained on. Runs are
interleaved; speed is the median over rounds. --model skips the training.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile

from machine import ROOT, cpu_name

PROGRAM = ROOT / "build/shardwise"
KINDS = {"bf16": [], "int8, a scale for each row": ["--quantize", "int8"],
         "int4, groups of 128": ["--quantize", "int4"], "int4, groups of 32": ["--quantize", "int4", "--group-size", "32"]}
KINDS |= {f"{kind}, int8 activations": [*flags, "--activations", "int8"] for kind, flags in KINDS.items() if flags}
KINDS |= {f"{kind}, int8 keys and values": [*KINDS[kind], "--kv-cache-dtype", "int8"] for kind in ("bf16", "int4, groups of 128")}


def run(*arguments):
    done = subprocess.run([str(a) for a in (PROGRAM, *arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"quantized: {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def texts():
    """Returns the files to train on, and the files to evaluate."""
    library = pathlib.Path(sysconfig.get_path("stdlib")).resolve()
    installed = {"site-packages", "dist-packages"}
    files = [p for p in sorted(library.rglob("*.py")) if not installed & set(p.relative_to(library).parts)]
    files = [p for p in files if p.stat().st_size > 0]
    held_out = files[25::50]
    return [p for p in files if p not in set(held_out)], held_out


def train(directory, preset, steps):
    job = {"text": [str(p) for p in texts()[0]], "preset": preset, "seq_len": 256, "batch_size": 4, "steps": steps,
           "lr": 2e-3, "warmup": min(50, steps), "dtype": "bf16", "tp": 2, "save": str(directory / "model"), "seed": 1}
    (directory / "job.json").write_text(json.dumps(job))
    run("train", "--config", directory / "job.json")
    return directory / "model"


def measured(model, text_bytes, tokens, rounds):
    """Returns (kind, tp) -> perplexity, bytes by rank, tokens per second."""
    with tempfile.TemporaryDirectory() as directory:
        text = pathlib.Path(directory) / "text"
        text.write_bytes(b"".join(p.read_bytes() for p in texts()[1])[:text_bytes])
        rows = {}
        for kind, flags in KINDS.items():
            for tp in (1, 2):
                found = json.loads(run("eval", "--model", model, "--text", text, "--dtype", "bf16", "--seq-len", 256,
                                       "--tp", tp, "--json", *flags))
                rows[kind, tp] = dict(perplexity=found["perplexity"], bytes=found["load"]["weight_bytes"], speeds=[])
        for _ in range(rounds):
            for (kind, tp), row in rows.items():
                found = json.loads(run("generate", "--model", model, "--prompt", "import os\n\n\ndef ", "--dtype", "bf16",
                                       "--max-new-tokens", tokens, "--ignore-eos", "--tp", tp, "--json", *KINDS[kind]))
                row["speeds"].append(found["decode"]["tokens_per_second"])
        return rows


def table(rows):
    base = {tp: rows["bf16", tp]["perplexity"] for tp in (1, 2)}
    lines = ["| weights | TP | weights in memory, largest rank | perplexity | change | tokens/s, batch 1 |",
             "|---|---|---|---|---|---|"]
    for (kind, tp), row in rows.items():
        change = row["perplexity"] / base[tp] - 1
        lines.append(f"| {kind} | {tp} | {max(row['bytes']) / 1e6:.2f} MB | {row['perplexity']:.4f} | {change:+.2%} "
                     f"| {statistics.median(row['speeds']):.0f} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.splitlines()[:2]))
    parser.add_argument("--model", help="directory of a trained byte-level model")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=1250)
    parser.add_argument("--text-bytes", type=int, default=200_000, help="size of the evaluated text")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or train(pathlib.Path(directory), options.preset, options.steps)
        rows = measured(model, options.text_bytes, options.tokens, options.rounds)
    today = datetime.date.today().isoformat()
    what = f"{options.preset}, {options.steps} steps in bf16" if not options.model else options.model
    text = f"""# quantized weights, {today}

CPU: {cpu_name()}. Command: `benchmarks/quantized.py {' '.join(sys.argv[1:])}`.
Model: {what}; perplexity per byte, on {options.text_bytes // 1000} kB of files that were not trained on. Embedding and head are bf16, or int8 with
a scale per row beside quantized layers; norms are bf16.

{table(rows)}
"""
    path = ROOT / "benchmarks/results" / f"{today}-{os.uname().machine}-quantized.md"
    path.write_text(text)
    print(text, f"written to {path}", sep="\n")


if __name__ == "__main__":
    main()

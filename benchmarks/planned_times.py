"""Compares the times that `shardwise plan` computes with measured ones, and writes the page to benchmarks/results/.

    .venv/bin/python benchmarks/planned_times.py [--what steps|generation|all] [--seconds S] [--machine-seconds S] [--twice] [--only TEXT]

`shardwise bench machine` measures the rates of one rank of all cores, or of two ranks, before the runs of each model; nothing is fitted to what is compared. Every combination of the lists below is planned and run: training
steps, prompts, and a token of each text. A shared machine changes between two measurements: each run times a probe beside it, arithmetic
or reading as many bytes as the weights have. If that has another rate than bench machine measured, by more than 10 %, both are measured again, up to three times.
`--twice` runs everything again after the first pass. No plan can order two runs better than their own measurements do, so the page then counts the pairs that the second pass orders the other way, and judges the plan also by those
that differ by more than 20 % in both.
"""

import argparse
import datetime
import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

from machine import ROOT, cpu_name, result_path

PROGRAM = ROOT / "build/shardwise"
LLAMA = dict(model_type="llama", rms_norm_eps=1e-5, max_position_embeddings=4096)
MODELS = {
    "llama 512 x 8": LLAMA | dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
                                  num_key_value_heads=4, vocab_size=8192),
    "llama 1024 x 4": LLAMA | dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16,
                                   num_key_value_heads=4, vocab_size=32000),
    "llama 2048 x 2": LLAMA | dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=2, num_attention_heads=32,
                                   num_key_value_heads=8, vocab_size=8192),
    "gpt2 768 x 6": dict(model_type="gpt2", n_embd=768, n_layer=6, n_head=12, vocab_size=16384, n_positions=4096),
}
# Of steps: sequences and tokens.
BATCHES = [(2, 256), (1, 512)]
SPLITS = {"1 rank": (1, True), "TP": (2, False), "TP+SP": (2, True)}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
RECOMPUTE = ["none", "full"]
# Of generation.
FORMATS = {"bf16": [], "int8": ["--quantize", "int8"], "int4": ["--quantize", "int4"]}
CONTEXTS, TEXTS = [128, 2048], [1, 8]


def run(*arguments):
    done = subprocess.run([str(a) for a in (PROGRAM, *arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"planned_times: {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def rate_at(points, work):
    """Returns the rate between two of [work, rate], linear in the logarithm of the work as in shardwise/plan/rate.h."""
    work = min(max(work, points[0][0]), points[-1][0])
    for (low, low_rate), (high, high_rate) in itertools.pairwise(points):
        if work <= high:
            return low_rate + math.log(work / low) / math.log(high / low) * (high_rate - low_rate)
    return points[-1][1]


class Run:
    """What is compared, of which machines, and the rows so far."""

    def __init__(self, directory, seconds, machine_seconds, only):
        self.directory, self.seconds, self.machine_seconds, self.only = directory, seconds, machine_seconds, only
        self.rows = {}

    def measure_machine(self, tp):
        self.machine = self.directory / f"machine-{tp}.json"
        self.machine.write_text(json.dumps(run("bench", "machine", "--tp", tp, "--seconds", self.machine_seconds, "--json")))

    def model(self, name):
        path = self.directory / f"{name.replace(' ', '-')}.json"
        path.write_text(json.dumps(MODELS[name]))
        return path

    def add(self, what, ms, planned_ms, probe):
        """Adds a row, or the second measurement of one."""
        print(f"{what}: {ms:.2f} ms, planned {planned_ms:.2f} ({planned_ms / ms - 1:+.1%}), probe {probe:.2f}", file=sys.stderr, flush=True)
        if what in self.rows:
            self.rows[what]["again"] = ms
        else:
            self.rows[what] = dict(what=what, ms=ms, planned=planned_ms, error=planned_ms / ms - 1, probe=probe, again=None)

    def measured_on_the_same_machine(self, tp, arguments, probes):
        """Runs a benchmark; `probes` returns its probes' rates as parts of the machine's. Measures both again if they differ."""
        for attempt in range(3):
            found = run(*arguments)
            worst = max((abs(math.log(p)) for p in probes(found)), default=0)
            if worst < math.log(1.1) or attempt == 2:
                return found
            self.measure_machine(tp)

    def plan(self, tp, name, *more):
        return run("plan", "--model", self.model(name), "--machine", self.machine, "--ranks", tp, "--tp", tp, "--json", *more)["plans"]

    def steps(self):
        measured_for = None
        for name, (split, (tp, sp)), (batch, tokens), recompute in itertools.product(MODELS, SPLITS.items(), BATCHES, RECOMPUTE):
            what = f"{name}, {batch} x {tokens}, {split}, recompute {recompute}"
            if self.only not in what:
                continue
            if measured_for != (name, tp):
                self.measure_machine(tp)
                measured_for = name, tp
            shape = ["--batch-size", batch, "--seq-len", tokens, "--recompute", recompute]
            arguments = ["bench", "step", "--model-config", self.model(name), "--tp", tp, *shape, "--seconds", self.seconds, "--json",
                         "--sequence-parallel" if sp else "--no-sequence-parallel"]
            measured = self.measured_on_the_same_machine(tp, arguments, lambda found: map(self.arithmetic_probe, found["dtypes"]))
            for of in measured["dtypes"]:
                plans = self.plan(tp, name, *shape, "--micro-batch-size", batch, "--dtype", DTYPES[of["dtype"]])
                (seconds,) = [p["seconds"]["total"] for p in plans if tp == 1 or p["degrees"]["sequence_parallel"] == sp]
                self.add(f"step of {what}, {of['dtype']}", of["step"]["median_us"] / 1e3, 1e3 * seconds, self.arithmetic_probe(of))

    def arithmetic_probe(self, of):
        then = json.loads(self.machine.read_text())["rates_32_bit" if of["dtype"] == "fp32" else "rates_16_bit"]["flop_per_second"]
        return of["arithmetic"]["operations"] / of["arithmetic"]["time"]["median_us"] * 1e6 / then

    def read_probe(self, of):
        then = rate_at(json.loads(self.machine.read_text())["inference"]["reading"], of["weight_bytes"])
        return of["weight_bytes"] / of["read"]["median_us"] * 1e6 / then

    def generation(self):
        for name, tp, phase in itertools.product(MODELS, (1, 2), ("prefill", "decode")):
            if self.only not in name:
                continue
            if phase == "prefill":
                self.measure_machine(tp)
            texts = ["--texts", ",".join(map(str, TEXTS))] if phase == "decode" else []
            arguments = ["bench", phase, "--model-config", self.model(name), "--tp", tp, "--formats", ",".join(FORMATS),
                         "--contexts", ",".join(map(str, CONTEXTS)), *texts, "--seconds", self.seconds, "--json"]
            measured = self.measured_on_the_same_machine(tp, arguments, lambda found: map(self.read_probe, found["formats"][:1]))
            for of in measured["formats"]:
                for case in of["cases"]:
                    (planned,) = self.plan(tp, name, "--task", "infer", "--batch-size", case["texts"], "--prompt-tokens", case["context"],
                                           "--new-tokens", 1, *FORMATS[of["format"]])
                    seconds = planned["prompt_seconds" if phase == "prefill" else "token_seconds"]["total"]
                    self.add(f"{'prompt' if phase == 'prefill' else 'token'} of {name}, {case['texts']} x {case['context']}, "
                             f"{tp} rank{'s' * (tp > 1)}, {of['format']}", case["step"]["median_us"] / 1e3, 1e3 * seconds, self.read_probe(of))


def apart(rows, key):
    """Returns the pairs of rows whose times differ by more than 20 %."""
    return [(a, b) for a, b in itertools.combinations(rows, 2) if max(a[key], b[key]) > 1.2 * min(a[key], b[key])]


def disagree(pairs, one, other):
    """Returns how many pairs of rows have another order by one time than by the other."""
    return sum((a[one] < b[one]) != (a[other] < b[other]) for a, b in pairs)


def summary(rows):
    """Returns a sentence on the errors of some rows, and on pairs of them that the plan orders the other way."""
    errors = sorted(abs(row["error"]) for row in rows)
    pairs = apart(rows, "ms")
    text = (f"mean error {sum(errors) / len(errors):.1%} over {len(rows)}, median {errors[len(errors) // 2]:.1%}, largest "
            f"{errors[-1]:.1%}; of {len(pairs)} pairs that differ by more than 20 %, {disagree(pairs, 'ms', 'planned')} are planned in "
            "the other order")
    if rows[0]["again"]:
        changes = sorted(abs(row["again"] / row["ms"] - 1) for row in rows)
        both = [(a, b) for a, b in pairs if apart((a, b), "again") and (a["ms"] < b["ms"]) == (a["again"] < b["again"])]
        text += (f"; {disagree(pairs, 'ms', 'again')} had the other order when they were measured again (mean change "
                 f"{sum(changes) / len(changes):.1%}, largest {changes[-1]:.1%}); of {len(both)} that differ by more than 20 % the same "
                 f"way both times, {disagree(both, 'ms', 'planned')} are planned in the other order")
    return text


def page(rows, command):
    lines = [f"# Planned and measured times on {cpu_name()}", "", f"{datetime.date.today()}, `{command}`. Nothing is fitted to these "
             "runs: the plan takes the rates of `shardwise bench machine`.", ""]
    for kind in ("step", "prompt", "token"):
        of_kind = [row for row in rows if row["what"].startswith(kind)]
        if of_kind:
            lines.append(f"- {kind}s: {summary(of_kind)}")
            same = [row for row in of_kind if abs(math.log(row["probe"])) < math.log(1.1)]
            if 1 < len(same) < len(of_kind):
                lines.append(f"  - those whose probe has the machine's rate to 10 %: {summary(same)}")
    lines += ["", "| | measured ms | and again | planned ms | error | probe's rate then and now |", "|---|---|---|---|---|---|"]
    lines += ["| {what} | {ms:.2f} | {second} | {planned:.2f} | {error:+.1%} | {probe:.2f} |".format(
        second=f"{row['again']:.2f}" if row["again"] else "", **row) for row in rows]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("steps", "generation", "all"), default="all", help="what to compare [all]")
    parser.add_argument("--seconds", type=float, default=3, help="of measuring one dtype or format [3]")
    parser.add_argument("--machine-seconds", type=float, default=0.2, help="of measuring an operation at one size [0.2]")
    parser.add_argument("--twice", action="store_true", help="measure everything a second time")
    parser.add_argument("--only", default="", help="run those whose description has this text, and write no page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        compared = Run(directory, args.seconds, args.machine_seconds, args.only)
        for _ in range(1 + args.twice):
            if args.what != "generation":
                compared.steps()
            if args.what != "steps":
                compared.generation()
    text = page(list(compared.rows.values()), " ".join(["benchmarks/planned_times.py", *sys.argv[1:]]))
    print(text)
    if not args.only:
        result_path("planned_times", "md").write_text(text)


if __name__ == "__main__":
    main()

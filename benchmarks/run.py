"""Benchmarks shardwise against other libraries, interleaved, and writes the ratios to benchmarks/results/.

    .venv-test/bin/python benchmarks/run.py [train_step] [axes] [pipeline] [optimizer] [gated_mlp] [linear_cross_entropy] [memory] [tokenize] [decode]
        [prefill] [vllm] [load] [comm] [overlap] [dtensor] [--rounds N] [--steps N]

In every round each candidate runs its steps once, so that noise of the machine affects all candidates alike. The time of a
candidate is the median over rounds of its time per step; a ratio compares two candidates in the same rounds. The processes
of a candidate live as long as the run, except:
load, comm and overlap start new processes in every round. comm compares all_reduce at five sizes with the libraries that
`tools/setup` and `tools/setup bench` install (comm.py). overlap compares linear layers with their GEMMs alone (overlap.py).
memory: every case runs once, without rounds and steps.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from candidates import Candidate, interleave, report
from comm import comm
from figures import Figure
from generation import decode, prefill, vllm
from machine import BUILD, ROOT, cpu_family, cpu_name, result_path
from overlap import overlap
from probes import measure


def train_step(rounds, steps):
    python = [sys.executable, str(ROOT / "benchmarks" / "peers.py")]
    ours = [str(BUILD / "benchmarks" / "bench_train_step")]
    sp = Candidate("shardwise TP=2+SP, 1 thread per rank", ours + ["sp"], 2, 1)
    tp = Candidate("shardwise TP=2, 1 thread per rank", ours + ["tp"], 2, 1)
    no_overlap = Candidate("shardwise TP=2, no overlap", ours + ["no-overlap"], 2, 1)
    split_batch = Candidate("shardwise TP=2, split batch", ours + ["split-batch"], 2, 1)
    one = Candidate("shardwise TP=1, 2 threads", ours + ["sp"], 1, 2)
    eager = Candidate("PyTorch eager, 2 threads", python + ["eager"], 1, 2)
    compiled = Candidate("PyTorch compiled, 2 threads", python + ["compiled"], 1, 2, peer=True)
    dtensor = Candidate("PyTorch DTensor TP=2+SP, Gloo, 1 thread per rank", python + ["dtensor"], 2, 1)
    candidates = [sp, eager, compiled, dtensor, tp, no_overlap, split_batch, one]
    interleave(candidates, rounds, steps)
    return report("Training step: hidden 512, 8 layers, 8 heads, 4 KV heads, ffn 1376, vocab 32000, s 256, b 4, fp32",
                  candidates, [("PyTorch eager / ours TP=2+SP", eager, sp, 1.45),
                               ("PyTorch compiled / ours TP=2+SP", compiled, sp, None),
                               ("PyTorch DTensor / ours TP=2+SP", dtensor, sp, 1.35),
                               ("PyTorch eager / ours TP=2", eager, tp, None),
                               ("ours TP=2, no overlap / overlap", no_overlap, tp, None),
                               ("ours TP=2, overlap / split batch", tp, split_batch, None),
                               ("PyTorch eager / ours TP=1", eager, one, None)]) + "\n" + bf16_step(rounds, steps)


def bf16_step(rounds, steps):
    """The same step in bf16 with fp32 master weights."""
    ours = [str(BUILD / "benchmarks" / "bench_train_step")]
    sp = Candidate("shardwise TP=2+SP, 1 thread per rank", [*ours, "sp", "bf16"], 2, 1)
    tp = Candidate("shardwise TP=2, 1 thread per rank", [*ours, "tp", "bf16"], 2, 1)
    peer = [sys.executable, str(ROOT / "benchmarks" / "peers.py")]
    eager = Candidate("PyTorch eager, 2 threads", [*peer, "eager", "bf16"], 1, 2)
    compiled = Candidate("PyTorch compiled, 2 threads", [*peer, "compiled", "bf16"], 1, 2, peer=True)
    candidates = [sp, eager, compiled, tp]
    interleave(candidates, rounds, steps)
    return report("Training step in bf16, fp32 master weights, shape as above", candidates,
                  [("PyTorch eager / ours TP=2+SP", eager, sp, 1.8), ("PyTorch compiled / ours TP=2+SP", compiled, sp, None),
                   ("PyTorch eager / ours TP=2", eager, tp, None)])


def share_of_step(candidate, key, steps, warm_up=2):
    """The part of the measured steps that took the seconds `key` of rank 0; those of the warm-up count as the others."""
    return candidate.last[key] / (steps + warm_up) / statistics.median(candidate.seconds)


def memory_in_axes(candidates):
    """What rank 0 of each needs from before the model on."""
    return "".join(f"\n| {candidate.name} | {candidate.last['resident_bytes'] / 1e6:.0f} MB |" for candidate in candidates)


def axes(rounds, steps):
    """The step of train_step, whose four sequences two replicas share."""
    return "\n".join(axes_in(dtype, rounds, steps) for dtype in ("fp32", "bf16"))


def axes_in(dtype, rounds, steps):
    ours, peer = str(BUILD / "benchmarks" / "bench_train_step"), [sys.executable, str(ROOT / "benchmarks" / "peers.py")]
    dp = Candidate("shardwise DP=2", [ours, "dp", dtype], 2, 1)
    zero3 = Candidate("shardwise DP=2, ZeRO 3", [ours, "zero3", dtype], 2, 1)
    sp = Candidate("shardwise TP=2+SP", [ours, "sp", dtype], 2, 1)
    peers, ratios, note = [], [("ours TP=2+SP / ours DP=2", sp, dp, 0.98), ("ours DP=2, ZeRO 3 / ours DP=2", zero3, dp, None)], ""
    if dtype == "bf16" and "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text():
        note = "PyTorch is not timed: without AVX-512 its products in bf16 take minutes a step.\n"
    else:
        for name, kind, target in (("PyTorch DDP, Gloo", "ddp", 1.5), ("PyTorch FSDP2, Gloo", "fsdp", 2.0)):
            peers.append(Candidate(name, [*peer, kind, dtype], 2, 1))
            ratios.append((f"{name} / ours DP=2", peers[-1], dp, target))
            if kind == "fsdp":
                ratios.append((f"{name} / ours DP=2, ZeRO 3", peers[-1], zero3, None))
    candidates = [dp, zero3, sp, *peers]
    interleave(candidates, rounds, steps)
    spent, waited = (share_of_step(dp, key, rounds * steps) for key in ("busy_s", "waiting_s"))
    return (report(f"Training step of train_step on two ranks of one thread, {dtype}", candidates, ratios)
            + f"\nCollectives of ours DP=2: {spent - waited:.1%} of a step (target: 3 %), besides {waited:.1%} waiting for the other "
            f"replica, which computes for longer in that step. {note}\n"
            + "\n| candidate | memory of a rank |\n|---|---|" + memory_in_axes(candidates)
            + "\n\nMemory of a rank is resident memory, at its peak and without what the process has before the model; in ours a page that both "
            "ranks share counts half for each. Target: at most 0.7x FSDP2's.\n")


def pipeline(rounds, steps):
    """Two stages of the model of train_step against two replicas, which have no idle time: 8 micro-batches of a step."""
    sections = []
    for dtype in ("fp32", "bf16"):
        ours = str(BUILD / "benchmarks" / "bench_pipeline_step")
        pp = Candidate("shardwise PP=2, layers 7 and 1 with the head", [ours, "pp", dtype], 2, 1)
        dp = Candidate("shardwise DP=2", [ours, "dp", dtype], 2, 1)
        interleave([pp, dp], rounds, steps)
        sections.append(report(f"Step of 8 micro-batches of 2 sequences on two ranks of one thread, {dtype}; bound of PP=2: 8/9 = 0.89x",
                               [pp, dp], [("ours DP=2 / ours PP=2", dp, pp, 0.95 * 8 / 9)]))
    return "\n".join(sections)


def optimizer(rounds, steps):
    """What follows backward: norm, clip, AdamW, the copy to bf16, zeroing."""
    ours = [str(BUILD / "benchmarks" / "bench_train_step"), "optimizer"]
    peer = [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "optimizer"]
    sections = []
    for dtype in ("fp32", "bf16"):
        two = Candidate("shardwise TP=2, 1 thread per rank", [*ours, dtype], 2, 1)
        one = Candidate("shardwise TP=1, 2 threads", [*ours, dtype], 1, 2)
        eager = Candidate("PyTorch, foreach norm and clip, fused AdamW, 2 threads", [*peer, dtype], 1, 2)
        interleave([two, eager, one], rounds, steps)
        sections.append(report(f"Norm, clip, AdamW, copy, zero of the parameters of train_step, {dtype}", [two, eager, one],
                               [("PyTorch / ours TP=2", eager, two, 1.6), ("PyTorch / ours TP=1", eager, one, None)]))
    return "\n".join(sections)


def gated_mlp(rounds, steps):
    sections = []
    for dtype in ("fp32", "bf16"):
        ours = [str(BUILD / "benchmarks" / "bench_gated_mlp"), dtype]
        two = Candidate("shardwise TP=2+SP", ours + ["sp"], 2, 1)
        plain = Candidate("shardwise TP=2", ours + ["tp"], 2, 1)
        one = Candidate("shardwise TP=1", ours + ["sp"], 1, 1)
        eager = Candidate("PyTorch eager", [sys.executable, str(ROOT / "benchmarks" / "peers.py"), "mlp", dtype], 1, 1)
        candidates = [two, one, plain, eager]
        interleave(candidates, rounds, steps)
        sections.append(report(f"Gated MLP 4096 × 11008, forward and backward, batch 16 × 128, {dtype}, 1 thread per rank",
                               candidates, [("TP=1 / TP=2+SP", one, two, 1.95), ("TP=1 / TP=2", one, plain, 1.95),
                                            ("PyTorch eager / ours TP=1", eager, one, None)]))
    return "\n".join(sections)


def linear_cross_entropy(rounds, steps):
    ours, peer = BUILD / "benchmarks" / "bench_linear_cross_entropy", ROOT / "benchmarks" / "peers.py"
    texts = []
    for dtype in ("bf16", "fp32"):
        sp = Candidate("shardwise TP=2+SP, 1 thread per rank", [str(ours), dtype], 2, 1)
        eager = Candidate("PyTorch eager, 2 threads", [sys.executable, str(peer), "linear_cross_entropy", dtype], 1, 2)
        interleave([sp, eager], rounds, steps, warm_up=1)
        bytes_of = [candidate.last["peak_bytes"] for candidate in (sp, eager)]
        texts.append(report(f"Head and loss, forward and backward: 4096 tokens, hidden 2048, vocabulary 128256, {dtype}",
                            [sp, eager], [("PyTorch eager / ours", eager, sp, 1 / 0.75)])
                     + f"\nMemory of a step beside input, weight and weight gradient: ours {bytes_of[0] / 1e6:.0f} MB per rank, "
                       f"PyTorch {bytes_of[1] / 1e6:.0f} MB: {bytes_of[0] / bytes_of[1]:.3f}× (target 0.02×).\n")
    return "\n".join(texts)


def memory_row(name, rank, measured, planned):
    return f"| {name} | {rank} | {measured:,} | {planned:,} | {measured / planned - 1:+.2%} |"


def memory():
    """Measured peak memory of each rank (by the counting allocator), next to the planned peak."""
    return memory_of_training() + "\n" + memory_of_generation()


def memory_of_generation():
    """Measures generation with random weights in a published shape."""
    lines = ["| dtype, prompt, new tokens, sequences, tp | rank | measured | planned | difference |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as directory:
        shape = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
                 "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
                 "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
                 "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
        pathlib.Path(directory, "config.json").write_text(json.dumps(shape))
        for dtype, prompt, new, sequences, tp in [("bf16", 512, 4, 1, 1), ("bf16", 512, 4, 1, 2), ("bf16", 2048, 4, 1, 2),
                                              ("fp32", 512, 4, 1, 2), ("bf16", 256, 4, 4, 3)]:
            command = [str(BUILD / "shardwise"), "generate", "--model", directory, "--load-format", "dummy", "--dtype", dtype,
                       "--tp", str(tp), "--prompt-ids", ",".join(["7"] * prompt), "--max-new-tokens", str(new),
                       "--num-return", str(sequences), "--temperature", "1", "--ignore-eos", "--json"]
            answer = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["memory"]
            for rank, figures in enumerate(zip(answer["peak_bytes"], answer["expected_peak_bytes"])):
                lines.append(memory_row(f"{dtype}, {prompt}, {new}, {sequences}, {tp}", rank, *figures))
    return ("### Generation, shape of Llama-3.2-1B: peak memory per rank, target within 5 % of the plan\n\n"
            + "\n".join(lines) + "\n")


def memory_of_training():
    text = [str(ROOT / "shardwise")]
    lines = ["| preset, s, b, tp | rank | measured | planned | difference |", "|---|---|---|---|---|"]
    for preset, length, batch, tp, flags in [("tiny", 256, 4, 1, []), ("tiny", 256, 4, 2, []),
                                             ("tiny", 256, 4, 2, ["--no-sequence-parallel"]), ("tiny", 256, 4, 3, []),
                                             ("small", 512, 4, 2, []), ("small", 512, 4, 2, ["--dtype", "bf16"])]:
        command = [str(BUILD / "shardwise"), "train", "--text", *text, "--preset", preset, "--seq-len", str(length),
                   "--batch-size", str(batch), "--steps", "3", "--tp", str(tp), "--json", *flags]
        summary = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        for rank in summary["ranks"]:
            lines.append(memory_row(f"{preset}, {length}, {batch}, {tp} {' '.join(flags)}", rank["rank"],
                               rank["peak_memory_bytes"], rank["expected_peak_memory_bytes"]))
    return "### Training: peak memory per rank, target within 5 % of the plan\n\n" + "\n".join(lines) + "\n"


def tokenize(rounds, steps):
    """Encodes 10 MB of text with four kinds of tokenizers."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    python = [sys.executable, str(ROOT / "benchmarks" / "tokenize_peer.py")]
    sections = []
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([*python, "make", directory, "10"], check=True)
        for name in ("gpt2", "llama3", "qwen2", "llama2"):
            files = [f"{directory}/{name}.json", f"{directory}/texts"]
            ours = Candidate("shardwise", [str(BUILD / "benchmarks" / "bench_tokenize"), *files], 1, 1)
            theirs = Candidate("tokenizers, encode_batch_fast", [*python, *files], 1, 1)
            interleave([ours, theirs], rounds, steps, warm_up=1)
            if (ours.last["ids"], ours.last["last"]) != (theirs.last["ids"], theirs.last["last"]):
                sys.exit(f"bench: {name}: the two candidates return different ids: {ours.last}, {theirs.last}")
            sections.append(report(f"{name}: 10 MB, {ours.last['ids']} ids of 32000, 1 thread", [ours, theirs],
                                   [("tokenizers / ours", theirs, ours, 1.0)]))
    return "\n".join(sections)


class Loader:
    """A program that every round restarts; it reports the time to load and the time to the first token."""

    def __init__(self, name, command, threads, read):
        self.name, self.command, self.threads, self.read = name, command, threads, read
        self.load, self.first_token = Figure(f"{name}: loaded"), Figure(f"{name}: first token")

    def run(self):
        environment = os.environ | {"SHARDWISE_THREADS": str(self.threads), "OMP_NUM_THREADS": str(self.threads)}
        output = subprocess.run(self.command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        self.last = json.loads(output.stdout)
        load, first_token = self.read(self.last)
        self.load.seconds.append(load)
        self.first_token.seconds.append(first_token)


def load(rounds):
    """Loads a 2.5 GB checkpoint from the page cache. The times exclude the start of the process."""
    peer = [sys.executable, str(ROOT / "benchmarks" / "load_peer.py")]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([*peer, "make", directory, ROOT / "benchmarks" / "shapes" / "llama-3.2-1b.json"], check=True)
        size = sum(file.stat().st_size for file in pathlib.Path(directory).glob("*.safetensors"))
        panels = str(pathlib.Path(directory) / "panels")
        subprocess.run([str(BUILD / "shardwise"), "shard", "--packed", "--tp", "2", directory, panels], check=True, stdout=subprocess.DEVNULL)
        ours = lambda model: [str(BUILD / "shardwise"), "generate", "--model", model, "--prompt-ids", "7", "--max-new-tokens", "1",
                              "--json", "--tp"]
        times = lambda answer: (answer["load"]["seconds"], answer["load"]["seconds"] + answer["prefill"]["seconds"])
        two = Loader("shardwise TP=2, 1 thread per rank", ours(directory) + ["2"], 1, times)
        one = Loader("shardwise TP=1, 2 threads", ours(directory) + ["1"], 2, times)
        mapped = Loader("shardwise TP=2, panel files", ours(panels) + ["2"], 1, times)
        theirs = Loader("transformers, 2 threads", [*peer, "load", directory], 2, lambda answer: tuple(answer.values()))
        loaders = [two, one, mapped, theirs]
        for number in range(rounds):
            for loader in loaders if number % 2 == 0 else reversed(loaders):
                loader.run()
    lines = [report("load, shape of Llama-3.2-1B, bf16, files in the page cache",
                    [figure for loader in loaders for figure in (loader.load, loader.first_token)],
                    [("transformers / ours TP=2, loaded", theirs.load, two.load, None),
                     ("transformers / ours TP=2, first token", theirs.first_token, two.first_token, 1.0),
                     ("transformers / ours TP=1, first token", theirs.first_token, one.first_token, 1.0),
                     ("transformers / ours with panel files, first token", theirs.first_token, mapped.first_token, 1.0)])]
    lines.append("| candidate | bytes read per rank | sum / file size |\n|---|---|---|")
    for loader in (two, one, mapped):
        read = loader.last["load"]["bytes_read"]
        lines.append(f"| {loader.name} | {', '.join(f'{bytes:,}' for bytes in read)} | {sum(read) / size:.4f}× |")
    return "\n".join(lines) + "\n"


def dtensor_pair(title, kind, rounds, steps):
    """Runs one program with two backends, and with one that sends nothing: a lower bound without overlap."""
    command = [sys.executable, str(ROOT / "benchmarks" / "dtensor_step.py"), kind]
    candidates = [Candidate(f"backend {backend}", [*command, backend], 2, 1) for backend in ("gloo", "shardwise", "fake")]
    interleave(candidates, rounds, steps)
    gloo, ours, fake = candidates
    if abs(gloo.last["loss"] - ours.last["loss"]) > 1e-4 * abs(gloo.last["loss"]):
        sys.exit(f"bench: {title}: the two backends train differently: {gloo.last}, {ours.last}")
    return report(f"{title}: {ours.last['shape']}", candidates,
                  [("backend gloo / backend shardwise", gloo, ours, 1.2),
                   ("backend gloo / no communication", gloo, fake, None)])


def dtensor(rounds, steps):
    """Runs PyTorch programs, of which only the communication differs."""
    load = os.getloadavg()[0]
    sections = [dtensor_pair("DTensor step, TP=2", "tp", rounds, steps),
                dtensor_pair("DTensor step, TP=2+SP", "sp", rounds, steps),
                dtensor_pair("DTensor step of `run.py train_step`, TP=2+SP", "train_step", rounds, steps),
                dtensor_pair("DTensor step of PyTorch's example, TP=2+SP", "example", rounds, steps)]
    return f"Load average before and after: {load:.1f}, {os.getloadavg()[0]:.1f}.\n\n" + "\n".join(sections)


TURNS = "Candidates are interleaved; a ratio is the median over rounds."
# Every benchmark with its options' defaults and its method.
BENCHES = {
    "train_step": (train_step, {"rounds": 15, "steps": 2}, TURNS),
    "pipeline": (pipeline, {"rounds": 11, "steps": 1}, TURNS),
    "axes": (axes, {"rounds": 11, "steps": 2}, TURNS),
    "optimizer": (optimizer, {"rounds": 15, "steps": 2}, TURNS),
    "gated_mlp": (gated_mlp, {"rounds": 15, "steps": 1}, TURNS),
    "linear_cross_entropy": (linear_cross_entropy, {"rounds": 5, "steps": 1}, TURNS),
    "tokenize": (tokenize, {"rounds": 7, "steps": 1}, TURNS),
    "decode": (decode, {"rounds": 9, "steps": 8}, TURNS),
    "prefill": (prefill, {"rounds": 5, "steps": 1}, TURNS),
    "vllm": (vllm, {"rounds": 9, "steps": 8}, TURNS),
    "load": (load, {"rounds": 5}, TURNS),
    "dtensor": (dtensor, {"rounds": 9, "steps": 2}, TURNS),
    "comm": (comm, {"rounds": 7}, TURNS + " Every round restarts each candidate."),
    "overlap": (overlap, {"rounds": 5}, "A round starts `shardwise bench overlap` for each dtype, which reports medians of "
                "interleaved repetitions. A ratio is the median over rounds of the ratio of two such medians."),
    "memory": (memory, {}, "Each row ran once, training for 3 steps; measured is the peak that the rank's allocators counted."),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=list(BENCHES))
    parser.add_argument("--rounds", type=int, help="rounds (default: 5 to 15)")
    parser.add_argument("--steps", type=int, help="steps per round (default: 1; train_step: 2; decode: 8)")
    options = parser.parse_args()
    today = datetime.date.today().isoformat()
    for what in options.what or BENCHES:
        bench, defaults, how = BENCHES[what]
        used = {name: getattr(options, name) or default for name, default in defaults.items()}
        before = measure()
        text = bench(**used)
        command = " ".join(["benchmarks/run.py", what] + [f"--{name} {value}" for name, value in used.items()])
        head = (f"# {what}, {today}\n\nCPU: {cpu_name()} (family {cpu_family()}), {os.cpu_count()} cores. "
                f"Command: `{command}`. {how}\n\nLimits of two ranks of one thread, before: {before}. After: {measure()}.\n\n")
        result_path(what, "md").write_text(head + text)
        print(head + text, flush=True)


if __name__ == "__main__":
    main()

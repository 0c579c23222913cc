"""Decode and prompts of the shape of Llama-3.2-1B, against llama.cpp and transformers."""

import pathlib
import subprocess
import sys
import tempfile

from candidates import Candidate, interleave, report
from machine import BUILD, ROOT


def bench_generation(what, kind, activations="precise"):
    return [str(BUILD / "benchmarks" / "bench_generation"), what, kind, activations]


def ours(what, kind, activations="precise"):
    name = kind if activations == "precise" else f"{kind}, int8 activations"
    return Candidate(f"shardwise TP=2 {name}, 1 thread per rank", bench_generation(what, kind, activations), 2, 1)


def llama_cpp(what, file):
    python = ROOT / ".venv-bench" / "bin" / "python"
    command = [str(python), str(ROOT / "benchmarks" / "llama_cpp_peer.py"), what, str(file)]
    return Candidate(f"llama.cpp {file.stem}, 2 threads", command, 1, 2, peer=True)


def lower_bound(kind):
    return Candidate(f"lower bound: read the weights of TP=2 {kind} once", bench_generation("read", kind), 2, 1)


def transformers(what):
    return Candidate("transformers, 2 threads", [sys.executable, str(ROOT / "benchmarks" / "generation_peer.py"), what, "bf16"],
                     1, 2, peer=True)


def with_llama_cpp_models(section):
    """Calls section(directory) with a directory of the model in llama.cpp's formats."""
    with tempfile.TemporaryDirectory() as directory:
        python = ROOT / ".venv-bench" / "bin" / "python"
        subprocess.run([str(python), str(ROOT / "benchmarks" / "llama_cpp_peer.py"), "make", directory], check=True)
        return section(pathlib.Path(directory))


SHAPE = "shape of Llama-3.2-1B, random weights"
# shardwise's format -> llama.cpp's, which stores the head of q4_0 in 6.6 bits a weight, and ours in 8.
QUANTIZED = {"int8": "q8_0", "int4": "q4_0", "int4-g32": "q4_0"}


def decode(rounds, steps):
    return with_llama_cpp_models(lambda directory: decode_sections(directory, rounds, steps))


def decode_sections(directory, rounds, steps):
    two, theirs, llama, floor = (ours("decode", "bf16"), transformers("decode"), llama_cpp("decode", directory / "bf16.gguf"),
                                 lower_bound("bf16"))
    one = Candidate("shardwise TP=1 bf16, 2 threads", bench_generation("decode", "bf16"), 1, 2)
    candidates = [two, one, theirs, llama, floor]
    interleave(candidates, rounds, steps, warm_up=1)
    sections = [report(f"decode, {SHAPE}, bf16: a step is one token, batch 1, context 32 and more", candidates,
                       [("llama.cpp / ours TP=2", llama, two, 1.1), ("transformers / ours TP=2", theirs, two, 2.0),
                        ("transformers / ours TP=1", theirs, one, None), ("lower bound / ours TP=2", floor, two, 0.9)])]
    for (kind, theirs), (peer, bound) in zip(QUANTIZED.items(), [(1.2, 0.88), (1.2, 0.8), (1.2, 0.8)]):
        two, llama, floor = ours("decode", kind), llama_cpp("decode", directory / f"{theirs}.gguf"), lower_bound(kind)
        interleave([two, llama, floor], rounds, steps, warm_up=1)
        sections.append(report(f"decode, {SHAPE}, {kind}", [two, llama, floor],
                               [(f"llama.cpp {theirs} / ours", llama, two, peer), ("lower bound / ours", floor, two, bound)]))
    return "\n".join(sections)


def prefill(rounds, steps):
    return with_llama_cpp_models(lambda directory: prefill_sections(directory, rounds, steps))


def prefill_sections(directory, rounds, steps):
    """In two parts: all candidates at once need more than 20 GB."""
    two, theirs, llama = ours("prefill", "bf16"), transformers("prefill"), llama_cpp("prefill", directory / "bf16.gguf")
    one = Candidate("shardwise TP=1 bf16, 2 threads", bench_generation("prefill", "bf16"), 1, 2)
    candidates = [two, one, theirs, llama]
    interleave(candidates, rounds, steps, warm_up=1)
    title = f"prefill, {SHAPE}: a step is a prompt of 512 tokens"
    in_bf16 = report(title, candidates,
                     [("llama.cpp bf16 / ours bf16", llama, two, 1.05), ("transformers / ours bf16", theirs, two, 1.05),
                      ("transformers / ours TP=1", theirs, one, None)])
    return in_bf16 + "\n" + prefill_quantized(directory, rounds, steps)


def prefill_quantized(directory, rounds, steps):
    two = ours("prefill", "bf16")
    candidates, comparisons = [two], []
    for kind, theirs in (("int8", "q8_0"), ("int4", "q4_0")):
        precise, rounded = ours("prefill", kind), ours("prefill", kind, "int8")
        llama = llama_cpp("prefill", directory / f"{theirs}.gguf")
        candidates += [precise, rounded, llama]
        comparisons += [(f"ours bf16 / ours {kind}", two, precise, 1.0),
                        (f"ours bf16 / ours {kind}, int8 activations", two, rounded, 1.0),
                        (f"llama.cpp {theirs} / ours {kind}", llama, precise, None),
                        (f"llama.cpp {theirs} / ours {kind}, int8 activations", llama, rounded, None)]
    interleave(candidates, rounds, steps, warm_up=1)
    return report("prefill with quantized weights; llama.cpp rounds activations to int8", candidates, comparisons)

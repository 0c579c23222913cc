"""Decode and prompts of two shapes with random weights, against llama.cpp, OpenVINO, vLLM and transformers."""

import contextlib
import pathlib
import subprocess
import sys
import tempfile

from candidates import Candidate, interleave, report
from machine import BUILD, ROOT, cpu_line

BENCHMARKS = ROOT / "benchmarks"
PYTHON = str(ROOT / ".venv-bench" / "bin" / "python")
LLAMA_CPP, OPENVINO, VLLM = ([PYTHON, str(BENCHMARKS / f"{peer}_peer.py")] for peer in ("llama_cpp", "openvino", "vllm"))


class Shape:
    """Makes the candidates of one shape; `files` is the directory of the model in the peers' formats."""

    WITHOUT_AMX = " (built without AMX)" if "amx_int8" in cpu_line("flags").split() else ""  # by tools/setup

    def __init__(self, name, files, peers):
        self.name = name
        self.path = BENCHMARKS / "shapes" / f"{name}.json"
        self.files = files
        for peer in peers:
            subprocess.run([*peer, "make", self.path, files], check=True)

    def worker(self, what, kind, activations):
        return [str(BUILD / "benchmarks" / "bench_generation"), what, kind, activations, str(self.path)]

    def ours(self, what, kind, activations="precise"):
        name = kind if activations == "precise" else f"{kind}, int8 activations"
        return Candidate(f"shardwise TP=2 {name}, 1 thread per rank", self.worker(what, kind, activations), 2, 1)

    def single(self, what, kind):
        return Candidate(f"shardwise TP=1 {kind}, 2 threads", self.worker(what, kind, "precise"), 1, 2)

    def lower_bound(self, kind):
        return Candidate(f"lower bound: read the weights of TP=2 {kind} once", self.worker("read", kind, "precise"), 2, 1)

    def llama_cpp(self, what, file_type):
        command = [*LLAMA_CPP, what, str(self.files / f"{file_type}.gguf")]
        return Candidate(f"llama.cpp {file_type}{self.WITHOUT_AMX}, 2 threads", command, 1, 2, peer=True)

    def openvino(self, what, name):
        command = [*OPENVINO, what, str(self.files / f"openvino-{name}" / "openvino_model.xml")]
        return Candidate(f"OpenVINO {name}, 2 threads", command, 1, 2, peer=True)

    def vllm(self, what):
        return Candidate("vLLM bf16, 2 threads", [*VLLM, what, str(self.files / "vllm")], 1, 2, peer=True)

    def transformers(self, what):
        command = [sys.executable, str(BENCHMARKS / "generation_peer.py"), what, "bf16", str(self.path)]
        return Candidate("transformers, 2 threads", command, 1, 2, peer=True)


@contextlib.contextmanager
def shape(name, peers=(LLAMA_CPP, OPENVINO)):
    """A Shape whose files are those that `peers` make."""
    with tempfile.TemporaryDirectory() as directory:
        yield Shape(name, pathlib.Path(directory), peers)


def decode(rounds, steps):
    with shape("llama-3.2-1b") as large:
        sections = [decode_bf16(large, rounds, steps)]
        # llama.cpp stores the head of q4_0 in 6.6 bits a weight, and ours in 8.
        for kind, theirs, bound in [("int8", "q8_0", 0.88), ("int4", "q4_0", 0.8), ("int4-g32", "q4_0", 0.8)]:
            sections.append(decode_quantized(large, kind, theirs, rounds, steps, [1.2, bound]))
    with shape("small") as small:
        sections.append(decode_small(small, rounds, 8 * steps))
        for kind, theirs in [("int8", "q8_0"), ("int4-g32", "q4_0")]:
            sections.append(decode_quantized(small, kind, theirs, rounds, 8 * steps, [1.1, None]))
    return "\n".join(sections)


def title(of, kind):
    return f"decode, shape {of.name}, random weights, {kind}: a step is one token, batch 1, context 32 and more"


def decode_bf16(of, rounds, steps):
    two, one = of.ours("decode", "bf16"), of.single("decode", "bf16")
    theirs, llama, floor = of.transformers("decode"), of.llama_cpp("decode", "bf16"), of.lower_bound("bf16")
    openvino = of.openvino("decode", "f16")
    candidates = [two, one, theirs, llama, openvino, floor]
    interleave(candidates, rounds, steps, warm_up=1)
    return report(title(of, "bf16"), candidates,
                  [("llama.cpp / ours TP=2", llama, two, 1.1), ("OpenVINO / ours TP=2", openvino, two, 1.1),
                   ("transformers / ours TP=2", theirs, two, 2.0),
                   ("transformers / ours TP=1", theirs, one, None), ("lower bound / ours TP=2", floor, two, 0.9)])


def decode_small(of, rounds, steps):
    two, one = of.ours("decode", "bf16"), of.single("decode", "bf16")
    llama, openvino, floor = of.llama_cpp("decode", "bf16"), of.openvino("decode", "f16"), of.lower_bound("bf16")
    candidates = [two, one, llama, openvino, floor]
    interleave(candidates, rounds, steps, warm_up=1)
    return report(title(of, "bf16"), candidates,
                  [("llama.cpp / ours TP=2", llama, two, 1.0), ("llama.cpp / ours TP=1", llama, one, None),
                   ("OpenVINO / ours TP=2", openvino, two, None), ("lower bound / ours TP=2", floor, two, None)])


def decode_quantized(of, kind, theirs, rounds, steps, targets):
    two, llama, floor = of.ours("decode", kind), of.llama_cpp("decode", theirs), of.lower_bound(kind)
    openvino = of.openvino("decode", theirs)
    candidates = [two, llama, openvino, floor]
    interleave(candidates, rounds, steps, warm_up=1)
    return report(title(of, kind), candidates,
                  [(f"llama.cpp {theirs} / ours", llama, two, targets[0]),
                   (f"OpenVINO {theirs} / ours", openvino, two, targets[0]),
                   ("lower bound / ours", floor, two, targets[1])])


def prefill(rounds, steps):
    with shape("llama-3.2-1b") as large:
        return prefill_bf16(large, rounds, steps) + "\n" + prefill_quantized(large, rounds, steps)


def prefill_bf16(of, rounds, steps):
    """Apart from the quantized candidates: all at once need more than 20 GB."""
    two, one = of.ours("prefill", "bf16"), of.single("prefill", "bf16")
    theirs, llama, openvino = of.transformers("prefill"), of.llama_cpp("prefill", "bf16"), of.openvino("prefill", "f16")
    candidates = [two, one, theirs, llama, openvino]
    interleave(candidates, rounds, steps, warm_up=1)
    return report(f"prefill, shape {of.name}, random weights: a step is a prompt of 512 tokens", candidates,
                  [("llama.cpp bf16 / ours bf16", llama, two, 1.05), ("OpenVINO f16 / ours bf16", openvino, two, 1.05),
                   ("transformers / ours bf16", theirs, two, 1.05),
                   ("transformers / ours TP=1", theirs, one, None)])


def prefill_quantized(of, rounds, steps):
    two = of.ours("prefill", "bf16")
    candidates, comparisons = [two], []
    for kind, theirs in (("int8", "q8_0"), ("int4", "q4_0")):
        precise, rounded = of.ours("prefill", kind), of.ours("prefill", kind, "int8")
        llama, openvino = of.llama_cpp("prefill", theirs), of.openvino("prefill", theirs)
        candidates += [precise, rounded, llama, openvino]
        comparisons += [(f"ours bf16 / ours {kind}", two, precise, 1.0),
                        (f"ours bf16 / ours {kind}, int8 activations", two, rounded, 1.0),
                        (f"llama.cpp {theirs} / ours {kind}", llama, precise, None),
                        (f"llama.cpp {theirs} / ours {kind}, int8 activations", llama, rounded, None),
                        (f"OpenVINO {theirs} / ours {kind}", openvino, precise, None),
                        (f"OpenVINO {theirs} / ours {kind}, int8 activations", openvino, rounded, None)]
    interleave(candidates, rounds, steps, warm_up=1)
    return report("prefill with quantized weights; llama.cpp and OpenVINO round activations to int8", candidates, comparisons)


def vllm(rounds, steps):
    """Apart from the other peers, beside which its memory does not suffice."""
    with shape("llama-3.2-1b", [VLLM]) as large:
        sections = [against_vllm(large, "decode", title(large, "bf16"), rounds, steps, 1.1),
                    against_vllm(large, "prefill", f"prefill, shape {large.name}, random weights: a step is a prompt of 512 tokens",
                                 rounds, 1, 1.05)]
    return "\n".join(sections)


def against_vllm(of, what, heading, rounds, steps, target):
    ours, theirs = of.ours(what, "bf16"), of.vllm(what)
    interleave([ours, theirs], rounds, steps, warm_up=1)
    return report(heading, [ours, theirs], [("vLLM / ours TP=2", theirs, ours, target)])

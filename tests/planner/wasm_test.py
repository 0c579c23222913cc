"""The compiled planner prints what the program prints, in node.

Both do the same operations in the same order, except std::log: the C libraries of emscripten (musl) and Debian (glibc, with fused
multiply-adds where the processor has them) round 1 in 25,000 logarithms differently, by one unit in the last place. So texts,
integers and orders must be equal, and numbers with a fraction within MOST_ULPS units; nearly all responses are equal byte for byte.
"""
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

from program import BUILD, PROGRAM, plan

MOST_ULPS = 4
HERE = pathlib.Path(__file__).parent
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32001, "hidden_size": 1536,
    "intermediate_size": 4097, "num_hidden_layers": 14, "num_attention_heads": 12, "num_key_value_heads": 3,
    "hidden_act": "silu", "max_position_embeddings": 8192, "initializer_range": 0.02, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    "bos_token_id": 1, "eos_token_id": 2,
}

RATE = [[1e6 + 1 / 3, 1e10], [3.3e8, 7.7e10], [1e11 / 7, 1.3e11]]  # whose logarithms are not those of round numbers
RATES = {"flop_per_second": 1.4e11} | dict.fromkeys(
    ["product", "input_gradient", "weight_gradient", "attention", "attention_backward", "elementwise"], RATE)
LINK = {"bytes_per_second": 3e9 / 7, "efficiency": 0.83, "seconds_per_call": 1e-5 / 3, "seconds_per_hop": 1e-6 / 7}
MACHINE = {
    "name": "made up", "source": "none", "devices_per_node": 3, "memory_bytes": 4.7e10, "reserved_bytes": 1e9 / 3,
    "memory_bytes_per_second": 1e11 / 3, "update_bytes_per_second": 1e11 / 7, "seconds_per_operation": 1e-6 / 3,
    "rates_16_bit": RATES, "rates_32_bit": RATES, "within_node": LINK, "across_nodes": LINK,
}


def names(of):
    """Returns the names in the help's line of --model or --machine."""
    text = subprocess.run([PROGRAM, "plan", "--help"], capture_output=True, text=True, check=True).stdout
    line = next(line for line in text.splitlines() if line.strip().startswith(f"--{of} "))
    listed = line.split("preset: ")[1] if of == "model" else line.split("NAME", 1)[1].split(", or ")[0]
    return [name.strip() for name in listed.split(",")]


def training_requests():
    """Every model on every machine, and on every number of ranks."""
    ranks = ["1", "8", "48", "64"]
    pairs = [(model, machine, ranks[i % 4]) for i, (model, machine) in enumerate(itertools.product(names("model"), names("machine")))]
    pairs += [(model, "h100", number) for model, number in itertools.product(names("model"), ranks)]
    for model, machine, number in dict.fromkeys(pairs):
        yield {"model": model, "ranks": number, "machine": machine, "batch-size": "96", "seq-len": "256"}


def inference_requests():
    options = [{}, {"quantize": "int8"}, {"quantize": "int4", "group-size": "64", "kv-cache-dtype": "int8"}, {"dtype": "float32"}]
    for model, (i, machine) in itertools.product(names("model"), enumerate(names("machine"))):
        yield {"task": "infer", "model": model, "ranks": "24", "machine": machine, "batch-size": "7", "prompt-tokens": "33",
               "new-tokens": "55"} | options[i % len(options)]


def pinned_requests():
    base = {"model": "llama-3.1-70b", "ranks": "1024", "machine": "h200"}
    for name, value in [("tp", "4"), ("cp", "8"), ("pp", "16"), ("dp", "32"), ("zero", "3"), ("micro-batch-size", "3"), ("recompute", "full"),
                        ("memory-cap", "39.7"), ("memory-cap", "1e2"), ("dtype", "float32"), ("batch-size", "3000"),
                        ("seq-len", "131072"), ("gradient-dtype", "bfloat16"), ("overlap", "off"), ("algorithm", "two-shot"),
                        ("algorithm", "tree"), ("split-batch", True), ("freeze", "model.layers.[0-9].*"), ("freeze", ["*.mlp.*", "model.layers.0.*"])]:
        yield base | {name: value}
    yield {"model": "deepseek-v3", "ranks": "2048", "ep": "16", "tp": "1", "batch-size": "4096"}
    yield {"model": "llama-3.1-405b", "min-gpus": True, "machine": "b200"}
    yield {"model": "llama-3.1-405b", "ranks": "16384", "batch-size": "16384"}


def refused_requests():
    base = {"model": "llama-3.1-8b", "ranks": "8"}
    for name, value in [("model", "gpt-5"), ("machine", "tpu"), ("ranks", "0"), ("ranks", "8.5"), ("tp", "3"), ("zero", "4"),
                        ("seq-len", "131073"), ("dtype", "float16"), ("memory-cap", "nan"), ("memory-cap", " 8"),
                        ("memory-cap", "0x10"), ("memory-cap", "+8"), ("memory-cap", "1e-400"), ("memory-cap", "1e400"), ("memory-cap", "inf"),
                        ("quantize", "int8"), ("why", True), ("nonsense", "1"), ("recompute", "\u00e9\u2028<"), ("algorithm", "butterfly"), ("overlap", "maybe"),
                        ("gradient-dtype", "float8"), ("freeze", "nothing.*"), ("freeze", "*")]:
        yield base | {name: value}


def responses(requests):
    """Returns the compiled planner's response to each request."""
    lines = "\n".join(json.dumps(request) for request in requests)
    run = subprocess.run(["node", HERE / "run_planner.js", BUILD / "planner/planner.js"], input=lines, capture_output=True,
                         text=True, check=True)
    return run.stdout.split("\n")[:-1]


def expected(flags, directory=None):
    """Returns the line that the compiled planner must print."""
    line = plan(flags, "--json", directory=directory).removesuffix("\n")
    return line if line.startswith("{") else json.dumps({"error": line}, ensure_ascii=False, separators=(",", ":"))


def ulps_between(mine, program):
    """Returns the most units in the last place between numbers of two JSON values; infinity if they differ otherwise."""
    if type(mine) is not type(program):
        return math.inf
    if isinstance(mine, float):
        return abs(mine - program) / math.ulp(program)
    if isinstance(mine, dict):
        return ulps_between(list(mine.items()), list(program.items()))
    if isinstance(mine, (list, tuple)):
        return max(map(ulps_between, mine, program), default=0) if len(mine) == len(program) else math.inf
    return 0 if mine == program else math.inf


class WasmTest(unittest.TestCase):
    compared, equal, most_ulps = 0, 0, 0

    @classmethod
    def tearDownClass(cls):
        print(f"wasm: {cls.equal} of {cls.compared} responses are equal byte for byte; at most {cls.most_ulps:g} ulp")

    def check(self, every, files=None, directory=None):
        every = list(every)
        got = responses({"flags": flags, "files": files or {}} for flags in every)
        self.assertEqual(len(got), len(every))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wanted = pool.map(lambda flags: expected(flags, directory), every)
            for flags, mine, program in zip(every, got, wanted):
                self.compare(mine, program, flags)
        return got

    def compare(self, mine, program, flags):
        WasmTest.compared += 1
        WasmTest.equal += mine == program
        ulps = 0 if mine == program else ulps_between(json.loads(mine), json.loads(program))
        WasmTest.most_ulps = max(WasmTest.most_ulps, ulps)
        self.assertLessEqual(ulps, MOST_ULPS, flags)

    def test_distances(self):
        self.assertEqual(ulps_between({"a": [1.0, 2]}, {"a": [1.0 + 2 ** -51, 2]}), 2)
        for other in ({"a": [1.0, 3]}, {"a": [1, 2]}, {"a": [1.0]}, {"b": [1.0, 2]}, {"a": [1.0, 2], "b": 0}):
            self.assertEqual(ulps_between({"a": [1.0, 2]}, other), math.inf)

    def test_training(self):
        self.assertGreaterEqual(len(self.check(training_requests())), 140)

    def test_inference(self):
        self.assertGreaterEqual(len(self.check(inference_requests())), 90)

    def test_pins(self):
        for response in self.check(pinned_requests()):
            self.assertIn("plans", json.loads(response))

    def test_errors(self):
        for response in self.check(refused_requests()):
            self.assertRegex(json.loads(response)["error"], r"\[SW\d{4}\]$")

    def test_files(self):
        files = {"config.json": json.dumps(CONFIG), "machine.json": json.dumps(MACHINE)}
        with tempfile.TemporaryDirectory() as directory:
            for name, text in files.items():
                (pathlib.Path(directory) / name).write_text(text)
            both = {"model": "config.json", "machine": "machine.json"}
            got = self.check([both | {"ranks": "6", "batch-size": "24"}, both | {"ranks": "4", "task": "infer"},
                              both | {"ranks": "4", "dtype": "float32"}, {"model": "machine.json", "ranks": "1"}],
                             files, directory)
        self.assertGreater(len(json.loads(got[0])["plans"]), 10)
        self.assertRegex(got[3], "model_type")


if __name__ == "__main__":
    unittest.main()

"""The Python package's types: mypy checks the sources and the examples, stubtest compares _C.pyi with the built module."""
import ast
import inspect
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch  # noqa: F401  the module loads after it

from shardwise import _C

ROOT = Path(__file__).resolve().parents[2]
PACKAGE, EXAMPLES = ROOT / "python/shardwise", ROOT / "examples/python"
# For programs with torch's classes: mypy infers neither the types of module attributes nor that a gradient is a DTensor, and
# accelerate has no types.
LENIENT = ["--check-untyped-defs", *(f"--disable-error-code={code}" for code in ("union-attr", "operator", "import-untyped"))]
# Each line marked to be an error must be one: --strict refuses marks without effect.
CALLS = """
import shardwise

shardwise.plan("tiny", ranks=2, zero=1).plans[0].degrees.zero
shardwise.plan({"model_type": "llama"}, task="infer", ranks=2, new_tokens=3).plans[0].degrees.replicas
shardwise.plan("tiny", shapes=True, tp=2).tensors[0].ranges
shardwise.plan(check=True).figures[0].error
shardwise.plan("tiny", ranks=2).plans[0].degrees.replicas  # type: ignore[attr-defined]
shardwise.plan("tiny", task="infer", ranks=2, zero=1)  # type: ignore[call-overload]
shardwise.plan("tiny", ranks=2, new_tokens=3)  # type: ignore[call-overload]
shardwise.plan("tiny", shapes=True)  # type: ignore[call-overload]
shardwise.plan("tiny", check=True)  # type: ignore[call-overload]
shardwise.plan("tiny", rank=2)  # type: ignore[call-overload]
shardwise.shard("in", "out")  # type: ignore[call-arg]
shardwise.doctor("in", tp="two")  # type: ignore[arg-type]
shardwise.inspect("in").rank_bytes[0] + 1
shardwise.inspect("in").quantization  # type: ignore[union-attr]
shardwise.plan("tiny", ranks=2).ranks = 3  # type: ignore[misc]
"""


def parameters(function):
    return [argument.arg for argument in function.args.args]


class TypesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cache = tempfile.TemporaryDirectory(prefix="shardwise-mypy-")  # what is known of torch
        cls.addClassCleanup(cls.cache.cleanup)

    def check(self, *command):
        done = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=self.cache.name, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_package(self):
        self.check("mypy", "--strict", PACKAGE)

    def test_the_examples(self):
        self.check("mypy", *LENIENT, *sorted(EXAMPLES.glob("*.py")))

    def test_the_functions(self):
        calls = Path(self.cache.name) / "calls.py"
        calls.write_text(CALLS)
        self.check("mypy", "--strict", calls)

    def test_the_stub_has_what_the_module_has(self):
        config = Path(self.cache.name) / "stubtest.ini"  # stubtest would read all of torch's sources again
        config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
        self.check("mypy.stubtest", "shardwise._C", "--mypy-config-file", config)

    def test_the_stub_names_the_module_s_parameters(self):
        """stubtest cannot check them, because pybind11 lists them only in the docstring."""
        stub = ast.parse((PACKAGE / "_C.pyi").read_text())
        functions = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
        self.assertTrue(functions)
        for function in functions:
            signature = inspect.getdoc(getattr(_C, function.name)).splitlines()[0]
            self.assertEqual(parameters(function), parameters(ast.parse(f"def {signature}: ...").body[0]), signature)


if __name__ == "__main__":
    unittest.main()

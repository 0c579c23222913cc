"""`pip install .` as in README: in an environment with only torch and the wheel, torch finds the backend automatically, and
the package's functions find the program.

The build directory stays, so that a second run compiles nothing. Nothing is downloaded.
"""
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ["WHEEL_BUILD"])
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
# The program does not import shardwise.
PROGRAM = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("shardwise")
x = torch.arange(5.0) + dist.get_rank()
dist.all_reduce(x)
assert x.tolist() == [1, 3, 5, 7, 9], x
# One write, because the output of several ranks could interleave within a print of an unbuffered Python.
print(f"rank {dist.get_rank()} of {dist.get_world_size()} {sys.modules['shardwise.torch'].__file__}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def run(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{ROOT}/.venv/bin:{environment['PATH']}",  # cmake and ninja
                    "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    done = subprocess.run([*map(str, command)], env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=1200, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}\n{done.stdout[-8000:]}")
    return done.stdout


class WheelTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="shardwise-wheel-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def build(self):
        run(*PIP, "wheel", "--no-build-isolation", "--check-build-dependencies", "--no-deps", "--no-index",
            "--config-settings", f"build-dir={BUILD}", "-w", self.directory, ROOT)  # -C is not in Debian 12's pip
        [wheel] = self.directory.glob("*.whl")
        return wheel

    def install(self, wheel):
        """Installs the wheel into an environment with this one's packages, torch among them; returns its Python."""
        venv = self.directory / "venv"
        run(sys.executable, "-m", "venv", "--without-pip", venv)
        [site] = venv.glob("lib/python*/site-packages")
        (site / "torch.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        run(*PIP, "--python", venv / "bin/python", "install", "--no-deps", "--no-index", wheel)
        return venv / "bin/python"

    def test_a_wheel_is_all_that_two_ranks_need(self):
        wheel = self.build()
        names = zipfile.ZipFile(wheel).namelist()
        module = "shardwise/_C" + sysconfig.get_config_var("EXT_SUFFIX")
        sources = ("__init__.py", "_C.pyi", "_checkpoints.py", "_doctor.py", "_messages.py", "_plan.py", "_plan_types.py",
                   "_program.py", "_records.py", "_torch_calls.py", "py.typed", "torch.py")
        self.assertEqual({f"shardwise/{name}" for name in sources} | {module},
                         {name for name in names if ".dist-info/" not in name})
        python = self.install(wheel)
        program = self.directory / "program.py"
        program.write_text(PROGRAM)
        printed = run(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program,
                      cwd=self.directory)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 {self.directory}/venv/lib/", printed)
        planned = run(python, "-c", "import shardwise; print(shardwise.plan('tiny', ranks=2).ranks, shardwise.__file__)",
                      cwd=self.directory)
        self.assertTrue(planned.startswith(f"2 {self.directory}/venv/lib/"), planned)


if __name__ == "__main__":
    unittest.main()

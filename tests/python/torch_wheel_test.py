"""`pip install .` as in README: in an environment with only torch and the wheel, torch finds the backend automatically, and
the package's functions run the program in it. The program is the one of this build, because compiling it takes minutes;
tests/options/run lets pip compile it.

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
PROGRAM = os.environ["SHARDWISE_PROGRAM"]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
# The program does not import shardwise.
RANKS = """
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


def run(*command, succeeds=True, **options):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHARDWISE_PROGRAM")}
    environment |= {"PATH": f"{ROOT}/.venv/bin:{environment['PATH']}",  # cmake and ninja
                    "CMAKE_BUILD_PARALLEL_LEVEL": "2"}
    done = subprocess.run([*map(str, command)], env=environment, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=1200, check=False, **options)
    if (done.returncode == 0) != succeeds:
        raise AssertionError(f"{command}\n{done.stdout[-8000:]}")
    return done.stdout


class WheelTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="shardwise-wheel-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def build(self, program):
        settings = (f"build-dir={BUILD}", f"cmake.define.SHARDWISE_WHEEL_PROGRAM={program}")
        run(*PIP, "wheel", "--no-build-isolation", "--check-build-dependencies", "--no-deps", "--no-index",
            *(word for setting in settings for word in ("--config-settings", setting)),  # -C is not in Debian 12's pip
            "-w", self.directory, ROOT)
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

    def check_names(self, wheel, program):
        """Checks that the package has its sources, the module, and `program`."""
        names = zipfile.ZipFile(wheel).namelist()
        module = "shardwise/_C" + sysconfig.get_config_var("EXT_SUFFIX")
        sources = ("__init__.py", "_C.pyi", "_checkpoints.py", "_doctor.py", "_messages.py", "_plan.py", "_plan_types.py",
                   "_program.py", "_records.py", "_torch_calls.py", "py.typed", "torch.py")
        self.assertEqual({f"shardwise/{name}" for name in sources} | {module, program},
                         {name for name in names if ".dist-info/" not in name})

    def planned(self, python, **options):
        return run(python, "-c", "import shardwise; print(shardwise.plan('tiny', ranks=2).ranks, shardwise._program.find())",
                   cwd=self.directory, **options)

    def test_a_wheel_is_all_that_two_ranks_and_the_functions_need(self):
        wheel = self.build(PROGRAM)
        self.check_names(wheel, "shardwise/bin/shardwise")
        python = self.install(wheel)
        ranks = self.directory / "ranks.py"
        ranks.write_text(RANKS)
        printed = run(python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", ranks,
                      cwd=self.directory)
        [package] = self.directory.glob("venv/lib/python*/site-packages/shardwise")
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 {package}", printed)
        self.assertEqual(self.planned(python), f"2 {package}/bin/shardwise\n")
        # Its RPATH is that of torch in the environment; no directory of the build.
        program = (package / "bin/shardwise").read_bytes()
        self.assertIn(b"$ORIGIN:$ORIGIN/../../torch/lib\0", program)

    def test_a_wheel_without_the_program_says_why(self):
        wheel = self.build("OFF")
        self.check_names(wheel, "shardwise/bin/no_program.txt")
        error = self.planned(self.install(wheel), succeeds=False)
        self.assertIn("got none; the package has none, because SHARDWISE_WHEEL_PROGRAM is OFF; `make install", error)


if __name__ == "__main__":
    unittest.main()

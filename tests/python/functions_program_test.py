"""How the functions of `import shardwise` run the program: its errors, progress, interrupts, and which program it is."""
import contextlib
import dataclasses
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest
from pathlib import Path

import shardwise
from functions import PROGRAM, Directory


class ErrorsTest(Directory):
    def test_a_usage_error_is_a_value_error_with_the_program_s_text(self):
        done = subprocess.run([PROGRAM, "plan", "--model", "tiny", "--ranks", "0"], capture_output=True, text=True, timeout=300)
        with self.assertRaises(ValueError) as caught:
            shardwise.plan("tiny", ranks=0)
        self.assertEqual(f"shardwise: {caught.exception}\n", done.stderr)
        self.assertRegex(str(caught.exception), r"^plan: --ranks must be .* got 0 \[SW\d{4}\]$")
        self.assertIsNone(caught.exception.__cause__)

    def test_an_empty_value_is_refused_as_such(self):
        with self.assertRaisesRegex(ValueError, "--machine must not be empty"):
            shardwise.plan("tiny", ranks=2, machine="")

    def test_other_failures_are_errors(self):
        lines = ("loading", "[rank 1] shardwise: load: a disk failed [SW0370]", "shardwise: rank 1 exited [SW0349]")
        program = self.script("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines) + "exit 1\n")
        with self.environment(SHARDWISE_PROGRAM=str(program)), self.assertRaises(shardwise.Error) as caught:
            shardwise.merge("a", "b")
        self.assertEqual(str(caught.exception), "[rank 1] load: a disk failed [SW0370]\nrank 1 exited [SW0349]")

    def test_a_line_that_is_not_utf_8(self):
        program = self.script("#!/bin/sh\nprintf 'shardwise: read \\377: failed [SW0370]\\n' >&2\nexit 1\n")
        with self.environment(SHARDWISE_PROGRAM=str(program)), self.assertRaisesRegex(shardwise.Error, "^read \ufffd: failed"):
            shardwise.merge("a", "b")

    def test_a_program_that_dies_silently(self):
        program = self.script("#!/bin/sh\nkill -9 $$\n")
        with self.environment(SHARDWISE_PROGRAM=str(program)), self.assertRaisesRegex(shardwise.Error, "merge must end .* -9"):
            shardwise.merge("a", "b")

    def test_a_disk_that_is_full_is_an_error(self):
        limited = self.script(f"#!/bin/sh\nulimit -f 1\nexec {PROGRAM} \"$@\"\n")
        model = self.model()
        with self.environment(SHARDWISE_PROGRAM=str(limited)), self.assertRaisesRegex(shardwise.Error, "^write .*: File too large .SW"):
            shardwise.merge(model, self.directory / "out")

    def test_a_file_that_is_no_program(self):
        with self.environment(SHARDWISE_PROGRAM=str(self.script(""))), self.assertRaisesRegex(
                shardwise.Error, "must be a program that this system runs; got Exec format error"):
            shardwise.merge("a", "b")

    def test_a_program_of_another_version(self):
        for printed, text in (('{"out": "b", "files": [], "tensors": 1, "bytes": 2}', "'seconds'"),
                              ('{"out": 3, "files": [], "tensors": 1, "bytes": 2, "seconds": 0}', "3 instead of str")):
            program = self.script(f"#!/bin/sh\necho '{printed}'\n")
            with self.environment(SHARDWISE_PROGRAM=str(program)), self.assertRaisesRegex(
                    shardwise.Error, f"one version; merge printed .*{text}"):
                shardwise.merge("a", "b")


class ProgramTest(Directory):
    """Which program runs: that of SHARDWISE_PROGRAM, of the package or its build tree, or on PATH."""

    def package(self, tree):
        """Links the package into a tree; returns its PYTHONPATH."""
        (self.directory / tree).mkdir(parents=True)
        (self.directory / tree / "shardwise").symlink_to(Path(shardwise.__file__).parent)
        return str(self.directory / tree)

    def run_python(self, package, **variables):
        environment = {"PYTHONPATH": package, "PATH": "/usr/bin:/bin", **variables}
        call = "import shardwise\nprint(shardwise.merge('a', 'b').out)"
        return subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, text=True, timeout=300)

    def named(self, name, directory):
        (self.directory / directory).mkdir(exist_ok=True)
        return self.script("#!/bin/sh\necho '" + json.dumps({"out": name, "files": [], "tensors": 0, "bytes": 0, "seconds": 0})
                           + "'\n", name=f"{directory}/shardwise")

    def test_the_order(self):
        package = self.package("build/python")
        on_path, built, given = (self.named(name, name) for name in ("path", "build", "given"))
        path = f"{on_path.parent}:/usr/bin:/bin"
        self.assertEqual(self.run_python(package, PATH=path, SHARDWISE_PROGRAM=str(given)).stdout, "given\n")
        self.assertEqual(self.run_python(package, PATH=path).stdout, "build\n")
        built.unlink()
        self.assertEqual(self.run_python(package, PATH=path).stdout, "path\n")

    def test_an_installed_package_looks_in_itself_and_on_path_only(self):
        package = self.package("lib/site-packages")
        self.named("neighbor", "lib")
        path = f"{self.named('path', 'path').parent}:/usr/bin:/bin"
        self.assertEqual(self.run_python(package, PATH=path).stdout, "path\n")
        wheel = self.directory / "wheel"
        shutil.copytree(Path(shardwise.__file__).parent, wheel / "shardwise")
        self.named("ours", "wheel/shardwise/bin")
        self.assertEqual(self.run_python(str(wheel), PATH=path).stdout, "ours\n")

    def test_without_a_program(self):
        package = self.package("lib/site-packages")
        for variables in ({}, {"SHARDWISE_PROGRAM": "/nowhere/shardwise"}):
            last = self.run_python(package, **variables).stderr.splitlines()[-1]
            self.assertRegex(last, "^shardwise.Error: shardwise: the program must be in this package, on PATH or named by SHARDWISE_PROGRAM; got "
                             + variables.get("SHARDWISE_PROGRAM", "none") + "; .*make install")


# Counts its interrupts, removes its file late, and ends.
SLOW = """#!/usr/bin/env python3
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[0]).parent
def interrupted(*_):
    with open(here / "signals", "a") as log:
        log.write("interrupt\\n")
    time.sleep(0.5)
    (here / "unfinished").unlink()
    sys.exit(130)
signal.signal(signal.SIGINT, interrupted)
print("merge: 1 of 3", end="", file=sys.stderr, flush=True)
(here / "unfinished").touch()
time.sleep(600)
"""
CALL = """
import time
import shardwise
from shardwise import _program
end = _program._end

def end_later(*arguments, **options):
    time.sleep(0.2)  # the program has begun to handle the terminal's signal: another one would not merge with it
    end(*arguments, **options)

_program._end = end_later
try:
    shardwise.merge("a", "b")
except KeyboardInterrupt:
    print("interrupted")
"""


def accept_interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the tests may run in the background, where it is ignored


class TerminalTest(Directory):
    def wait_for(self, path):
        for _ in range(6000):
            if path.exists():
                return
            time.sleep(0.01)
        self.fail(path)

    def on_terminal(self, program, code, keys=b"", ready=None):
        """Runs Python with a terminal of 50 columns; returns all that the terminal shows."""
        environment = os.environ | {"SHARDWISE_PROGRAM": str(program), "NO_COLOR": "1"}
        child, terminal = pty.fork()
        if child == 0:
            accept_interrupts()
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 24, 50, 0, 0))
            os.execve(sys.executable, [sys.executable, "-c", code], environment)
        if ready:
            self.wait_for(ready)
            os.write(terminal, keys)
        shown = b""
        with contextlib.suppress(OSError):
            while part := os.read(terminal, 4096):
                shown += part
        os.close(terminal)
        self.assertEqual(os.waitpid(child, 0)[1], 0, shown)
        return shown.decode().replace("\r\n", "\n")

    def check_interrupted_once(self):
        self.assertEqual((self.directory / "signals").read_text(), "interrupt\n")
        self.assertFalse((self.directory / "unfinished").exists())

    def test_an_interrupt_of_python_ends_the_program(self):
        environment = os.environ | {"SHARDWISE_PROGRAM": str(self.script(SLOW))}
        process = subprocess.Popen([sys.executable, "-c", CALL], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True, preexec_fn=accept_interrupts)
        self.addCleanup(process.kill)
        self.wait_for(self.directory / "unfinished")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.communicate(timeout=300), ("interrupted\n", ""))
        self.check_interrupted_once()

    def test_ctrl_c_reaches_the_program_once(self):
        shown = self.on_terminal(self.script(SLOW), CALL, keys=b"\x03", ready=self.directory / "unfinished")
        self.assertIn("merge: 1 of 3", shown)
        self.assertIn("interrupted\n", shown)
        self.check_interrupted_once()

    def test_an_error_after_a_progress_line(self):
        """The program clears its progress line before the error."""
        limited = self.script(f"#!/bin/sh\nulimit -f 100\nexec {PROGRAM} \"$@\"\n")
        model, out = self.model(), self.directory / "out"
        shown = self.on_terminal(limited, f"import shardwise\ntry:\n    shardwise.merge({str(model)!r}, {str(out)!r})\n"
                                 "except shardwise.Error as error:\n    print(error)")
        self.assertRegex(shown, r"^(\r\x1b\[2K.*)*\r\x1b\[2Kresize .*: File too large \[SW\d{4}\]\n$")

    def test_a_terminal_shows_all_but_errors(self):
        program = self.script("""#!/bin/sh
test -t 2 && stty size <&2 >&2
printf 'some ' >&2; printf 'progress\\n' >&2
echo 'warning: merge: odd' >&2
printf 'should' >&2; sleep 0.1; printf ' be shown\\n' >&2
printf 'shard' >&2; sleep 0.1; echo 'wise: merge: IN must be right [SW0001]' >&2
exit 2
""")
        shown = self.on_terminal(program, "import shardwise\ntry:\n    shardwise.merge('a', 'b')\nexcept ValueError as error:\n"
                                 "    print(repr(str(error)))")
        self.assertEqual(shown, "24 50\nsome progress\nwarning: merge: odd\nshould be shown\n"
                         "'merge: IN must be right [SW0001]'\n")


class ImportTest(unittest.TestCase):
    def test_does_not_import_torch(self):
        code = "import sys, shardwise\nshardwise.plan('tiny', ranks=2)\nprint('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        self.assertEqual(done.stdout, "False\n")

    def test_all_has_every_class_of_a_result(self):
        classes = {value for name in ("_plan_types", "_checkpoints", "_doctor")
                   for value in vars(getattr(shardwise, name)).values() if dataclasses.is_dataclass(value)}
        self.assertEqual(classes, {value for name in shardwise.__all__ if dataclasses.is_dataclass(value := getattr(shardwise, name))})


if __name__ == "__main__":
    unittest.main()

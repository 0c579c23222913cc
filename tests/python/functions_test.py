"""The functions of `import shardwise`: their arguments are the program's flags, their results all that it prints."""
import contextlib
import dataclasses
import fcntl
import inspect
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import warnings
from pathlib import Path

import shardwise

PROGRAM = os.environ["SHARDWISE_PROGRAM"]
COMMANDS = ("plan", "inspect", "shard", "merge", "quantize", "doctor")
# Flags that are no arguments: what Python replaces, and what only text has.
LEFT_OUT = {"help", "json", "config"}
TEXT_ONLY = {"plan": {"rows", "why", "html", "learn", "out"}}  # or that write files
NAMES = {"plan": {"model": "config"}, "inspect": {"DIR": "directory"}}  # of other arguments
POSITIONAL = {"IN": "model", "OUT": "out"}
SMALL = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}

RATES = {"flop_per_second": 1e12} | {name: [[1e6, 1e12]] for name in (
    "product", "input_gradient", "weight_gradient", "attention", "attention_backward", "elementwise")}


def printed_by(*command):
    done = subprocess.run([PROGRAM, *map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    return done.stdout


def arguments_of(command):
    """Returns the names of the program's flags and positional arguments, as its help lists them."""
    found = set()
    for first, name in re.findall(r"^  (-\S+|[A-Z]+) .*?([A-Z]+|$)", printed_by(command, "--help"), re.MULTILINE):
        names = [part.removeprefix("--") for part in first.split(",") if part.startswith("--")]
        found.add(names[0] if names else first)
    return found


def as_json(value):
    """Returns a result as the JSON it was read from."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


class Directory(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="shardwise-functions-")
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def model(self):
        """Trains a step of a small model; returns its directory."""
        config, text, out = (self.directory / name for name in ("small.json", "text", "run"))
        config.write_text(json.dumps(SMALL | {"vocab_size": 256}))
        text.write_text("A text of some letters. " * 200)
        printed_by("train", "--model-config", config, "--text", text, "--seq-len", 16, "--batch-size", 2, "--steps", 1,
                   "--save", out, "--json")
        return out

    def script(self, text, name="shardwise"):
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    @contextlib.contextmanager
    def environment(self, **variables):
        before = dict(os.environ)
        os.environ.update(variables)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


class ArgumentsTest(Directory):
    def test_are_the_flags_of_the_program(self):
        for command in COMMANDS:
            with self.subTest(command=command):
                flags = arguments_of(command) - LEFT_OUT - TEXT_ONLY.get(command, set())
                names = POSITIONAL | NAMES.get(command, {})
                expected = {names.get(flag, flag.replace("-", "_")) for flag in flags}
                self.assertEqual(set(inspect.signature(getattr(shardwise, command)).parameters), expected)

    def test_help_that_the_test_reads(self):
        self.assertGreaterEqual(arguments_of("plan"), {"model", "tp", "kv-cache-dtype", "json", "check", "help", "rows"})
        self.assertEqual(arguments_of("merge"), {"IN", "OUT", "help", "json", "config"})

    def test_every_argument_reaches_the_program(self):
        program = self.script("#!/bin/sh\nprintf '%s\\n' \"$@\" > \"$0.arguments\"\nexit 1\n")
        for command in COMMANDS:
            function = getattr(shardwise, command)
            names = {argument: flag for flag, argument in NAMES.get(command, {}).items()}
            given, expected = {}, [command, "--json"]
            for name, parameter in inspect.signature(function).parameters.items():
                is_switch = parameter.annotation == "bool"
                given[name] = True if is_switch else f"value of {name}"
                if parameter.kind is parameter.KEYWORD_ONLY or (command, name) in (("plan", "config"), ("doctor", "model")):
                    flag = f"--{names.get(name, name).replace('_', '-')}"
                    expected.append(flag if is_switch else f"{flag}=value of {name}")
                else:
                    expected.append(f"value of {name}")
            with self.subTest(command=command), self.environment(SHARDWISE_PROGRAM=str(program)):
                self.assertRaises(shardwise.Error, function, **given)
                arguments = Path(f"{program}.arguments").read_text().splitlines()
                self.assertEqual((arguments[:2], sorted(arguments)), (expected[:2], sorted(expected)))

    def test_unknown_names_are_refused_by_python(self):
        with self.assertRaisesRegex(TypeError, "rank"):
            shardwise.plan("tiny", rank=2)
        with self.assertRaisesRegex(TypeError, "rows"):
            shardwise.plan("tiny", ranks=2, rows=2)


class PlanTest(Directory):
    def check(self, kind, config, *flags, **arguments):
        result = shardwise.plan(config, **arguments)
        self.assertIsInstance(result, kind)
        self.assertEqual(as_json(result), json.loads(printed_by("plan", "--json", "--model", config, *flags)))
        return result

    def test_training(self):
        result = self.check(shardwise.TrainingPlans, "small", "--ranks", 4, "--machine", "a100", "--seq-len", 512, "--recompute",
                            "none", "--memory-cap", 0.25, ranks=4, machine="a100", seq_len=512, recompute="none", memory_cap=0.25)
        self.assertTrue(result.plans and result.refused)
        self.assertLessEqual(result.plans[0].seconds.total, result.plans[-1].seconds.total)
        self.assertEqual({plan.degrees.recompute for plan in result.plans}, {"none"})

    def test_generation(self):
        result = self.check(shardwise.InferencePlans, "llama-3.1-8b", "--task", "infer", "--ranks", 2, "--batch-size", 8,
                            "--quantize", "int4", task="infer", ranks=2, batch_size=8, quantize="int4")
        self.assertEqual({plan.degrees.tp for plan in result.plans}, {1, 2})
        refused = self.check(shardwise.InferencePlans, "llama-3.1-8b", "--task", "infer", "--ranks", 2, task="infer", ranks=2)
        self.assertTrue(refused.refused)

    def test_shapes(self):
        result = self.check(shardwise.ShardedTensors, "tiny", "--shapes", "--tp", 2, shapes=True, tp=2)
        qkv = next(tensor for tensor in result.tensors if tensor.tensor == "qkv_proj")
        self.assertEqual((qkv.dim, qkv.ranges[1]), (0, ((128, 256), (320, 384), (448, 512))))
        reduced = result.block_collectives[0]
        self.assertEqual((reduced.phase, reduced.collective, reduced.calls), ("forward", "all_reduce", 2))
        self.assertEqual(reduced.bytes[0], reduced.bytes[1])

    def test_published_figures(self):
        result = shardwise.plan(check=True)
        self.assertEqual(as_json(result), json.loads(printed_by("plan", "--check", "--json")))
        self.assertTrue(all(figure.in_band for figure in result.figures))

    def test_largest(self):
        steps = self.check(shardwise.LargestSteps, "llama-3.1-8b", "--largest", "seq", "--ranks", 4, largest="seq", ranks=4)
        self.assertEqual(steps.largest, "sequence_length")
        self.assertEqual({plan.tp for plan in steps.plans}, {1, 2, 4})
        caches = self.check(shardwise.LargestCaches, "llama-3.1-8b", "--largest", "kv", "--task", "infer", "--ranks", 2,
                            largest="kv", task="infer", ranks=2)
        self.assertTrue(all(plan.cached_tokens == 640 * plan.size for plan in caches.plans))

    def test_matrix(self):
        result = shardwise.plan(matrix=True)
        self.assertEqual(as_json(result), json.loads(printed_by("plan", "--matrix", "--json")))
        self.assertTrue(all(decision.fastest for decision in result.decisions))

    def test_nothing_that_fits_is_a_result(self):
        result = self.check(shardwise.TrainingPlans, "llama-3.1-405b", "--ranks", 1, ranks=1)
        self.assertEqual(result.plans, ())
        self.assertIn("GB", result.refused[0].reason)

    def test_fewest_devices(self):
        result = self.check(shardwise.InferencePlans, "llama-3.1-70b", "--task", "infer", "--min-gpus", task="infer",
                            min_gpus=True)
        self.assertEqual(result.ranks, 2)

    def test_a_dict_is_a_config(self):
        path = self.directory / "config.json"
        path.write_text(json.dumps(SMALL))
        of_dict = shardwise.plan(SMALL, ranks=2)
        self.assertEqual(of_dict.model, "config.json")
        self.assertEqual(dataclasses.replace(of_dict, model=str(path)), shardwise.plan(path, ranks=2))

    def test_a_dict_is_a_machine(self):
        machine = {"name": "two", "source": "a test", "devices_per_node": 2, "shares_memory": True, "memory_bytes": 10**9,
                   "reserved_bytes": 0, "memory_bytes_per_second": 1e10, "update_bytes_per_second": 1e10,
                   "seconds_per_operation": 1e-6, "rates_16_bit": RATES, "rates_32_bit": RATES,
                   "within_node": {"bytes_per_second": 1e9, "efficiency": 1, "seconds_per_call": 1e-6, "seconds_per_hop": 0}}
        result = shardwise.plan(SMALL, ranks=2, machine=machine)
        self.assertEqual(result.machine, "two")
        slow = shardwise.plan(SMALL, ranks=2, machine=machine | {"memory_bytes_per_second": 1e8, "update_bytes_per_second": 1e8})
        self.assertGreater(slow.plans[0].seconds.total, result.plans[0].seconds.total)

    def test_an_error_of_a_dict_names_no_temporary_file(self):
        with self.assertRaisesRegex(ValueError, r"^config\.json: .*hidden_size.* \[SW\d{4}\]$"):
            shardwise.plan(SMALL | {"hidden_size": -1}, ranks=2)


class CheckpointsTest(Directory):
    def test_inspect(self):
        model = self.model()
        result = shardwise.inspect(model, tp=2)
        self.assertIsInstance(result, shardwise.Inspection)
        self.assertEqual(as_json(result), json.loads(printed_by("inspect", "--tp", 2, "--json", model)))
        self.assertEqual(len(result.rank_bytes), 2)

    def test_shard_and_merge(self):
        model, parts, whole = self.model(), self.directory / "parts", self.directory / "whole"
        sharded = shardwise.shard(model, parts, tp=2)
        self.assertEqual((sharded.out, sharded.tp, len(sharded.files)), (str(parts), 2, 2))
        self.assertEqual(sharded.bytes, sum(shardwise.inspect(parts, tp=2).rank_bytes))
        merged = shardwise.merge(parts, whole)
        self.assertEqual((merged.files, merged.tensors), (("model.safetensors",), sharded.tensors))
        self.assertEqual(shardwise.inspect(whole).tensors, shardwise.inspect(model).tensors)
        again = self.directory / "again"
        printed = json.loads(printed_by("merge", "--json", parts, again))
        self.assertEqual(as_json(merged) | {"out": str(again), "seconds": 0}, printed | {"seconds": 0})

    def test_packed(self):
        out = self.directory / "packed"
        written = shardwise.shard(self.model(), out, tp=2, packed=True, quantize="int8")
        self.assertEqual(written.tp, 2)
        result = shardwise.inspect(out)
        self.assertIsInstance(result, shardwise.PanelInspection)
        self.assertEqual(as_json(result), json.loads(printed_by("inspect", "--json", out)))
        self.assertEqual((result.quantize, {tensor.packed for tensor in result.tensors}), ("int8", {True, False}))

    def test_a_rank_of_another_job_starts_ranks_of_its_own(self):
        model = self.model()
        for variables in ({"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "MASTER_ADDR": "localhost",
                           "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"},
                          {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, {"MPI_LOCALRANKID": "1"},
                          {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "1"}, {"SHARDWISE_RANK": "1"}):
            with self.subTest(variables=variables), self.environment(**variables):
                out = self.directory / ("packed-" + min(variables))
                self.assertEqual(shardwise.shard(model, out, tp=2, packed=True, quantize="int8").tp, 2)

    def test_quantize(self):
        model, out, again = self.model(), self.directory / "int4", self.directory / "again"
        written = shardwise.quantize(model, out, group_size=32)
        printed = json.loads(printed_by("quantize", "--group-size", 32, "--json", model, again))
        self.assertEqual(as_json(written) | {"out": str(again), "seconds": 0}, printed | {"seconds": 0})
        self.assertIn("int4", shardwise.inspect(out).quantization)

    def test_a_directory_whose_name_begins_with_a_dash(self):
        model = self.model()
        with contextlib.chdir(self.directory):
            os.rename(model, "-run")
            self.assertEqual(shardwise.inspect("-run").model_type, "llama")

    def test_a_warning_is_one_of_python(self):
        model = self.model()
        path = model / "step-1/config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 999}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shardwise.inspect(model)
        self.assertEqual([Path(warning.filename).name for warning in caught], [Path(__file__).name])
        self.assertRegex(str(caught[0].message), r"^inspect: eos_token_id .* got 999")


class DoctorTest(Directory):
    def test_a_model_without_bugs(self):
        model, text = self.model(), self.directory / "words"
        text.write_text("Other words. " * 20)
        result = shardwise.doctor(model, tp=2, seq_len=8, text=[self.directory / "text", text])
        self.assertEqual((result.verdict, result.bug, result.tp, result.seq_len), ("rounding", None, 2, 8))
        self.assertTrue(all(check.passed for check in result.checks))
        printed = json.loads(printed_by("doctor", "--model", model, "--tp", 2, "--seq-len", 8, "--text",
                                        self.directory / "text", text, "--json"))
        self.assertEqual(as_json(result)["comparisons"], printed["comparisons"])
        self.assertEqual(as_json(result)["traffic"], printed["traffic"])
        self.assertEqual(as_json(result).keys(), printed.keys())

    def test_a_bug_is_a_result(self):
        report = {"model": "m", "tp": 2, "dtype": "fp32", "seq_len": 8, "verdict": "bug", "bug": "layer 1 differs",
                  "comparisons": [], "checks": [], "traffic": []}
        program = self.script(f"#!/bin/sh\necho '{json.dumps(report)}'\nexit 3\n")
        with self.environment(SHARDWISE_PROGRAM=str(program)):
            self.assertEqual(shardwise.doctor("m", tp=2).bug, "layer 1 differs")


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
    """Which program runs: that of SHARDWISE_PROGRAM, of the build tree, or on PATH."""

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

    def test_an_installed_package_looks_on_path_only(self):
        package = self.package("lib/site-packages")
        self.named("neighbor", "lib")
        self.assertEqual(self.run_python(package, PATH=f"{self.named('path', 'path').parent}:/usr/bin:/bin").stdout, "path\n")

    def test_without_a_program(self):
        package = self.package("lib/site-packages")
        for variables in ({}, {"SHARDWISE_PROGRAM": "/nowhere/shardwise"}):
            last = self.run_python(package, **variables).stderr.splitlines()[-1]
            self.assertRegex(last, "^shardwise.Error: shardwise: the program must be on PATH .*SHARDWISE_PROGRAM; got "
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

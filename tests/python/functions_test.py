"""The functions of `import shardwise`: their arguments are the program's flags, their results all that it prints."""
import contextlib
import dataclasses
import inspect
import json
import os
import re
import warnings
from pathlib import Path

import shardwise
from functions import SMALL, Directory, printed_by

COMMANDS = ("plan", "inspect", "shard", "merge", "quantize", "doctor")
# Flags that are no arguments: what Python replaces, and what only text has.
LEFT_OUT = {"help", "json", "config"}
TEXT_ONLY = {"plan": {"rows", "why", "html", "learn", "out"}}  # or that write files
NAMES = {"plan": {"model": "config"}, "inspect": {"DIR": "directory"}}  # of other arguments
POSITIONAL = {"IN": "model", "OUT": "out"}

RATES = {"flop_per_second": 1e12} | {name: [[1e6, 1e12]] for name in (
    "product", "input_gradient", "weight_gradient", "attention", "attention_backward", "elementwise")}


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
        mixture = self.check(shardwise.InferencePlans, "mixtral-8x7b", "--task", "infer", "--ranks", 8, "--batch-size", 8, "--pp", 2, "--ep", 2,
                             task="infer", ranks=8, batch_size=8, pp=2, ep=2)
        self.assertEqual({plan.degrees.ep * plan.degrees.pp for plan in mixture.plans}, {4})
        self.assertTrue(all(plan.pipelined_token_seconds > 0 for plan in mixture.plans if plan.degrees.replicas < 8))
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


if __name__ == "__main__":
    unittest.main()

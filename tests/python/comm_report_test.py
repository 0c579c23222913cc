"""The report of benchmarks/run.py comm for synthetic rounds: ratios, verdicts and placements."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import comm_report  # noqa: E402
from comm_report import SIZES  # noqa: E402
from machine import cpu_of_each_core  # noqa: E402

SMALLEST, LARGEST = SIZES[0], SIZES[-1]


def points(call, us, **by_size):
    """Returns points of all sizes in both modes with the times `us` of every round; s4096=... overrides a size."""
    return [{"bytes": size, "mode": mode, "call": call, "raw_us": rounds, "net_us": rounds}
            for size in SIZES for mode in ("warm", "rewritten") for rounds in [by_size.get(f"s{size}", us)]]


def results(**peers):
    """Returns results in which shardwise takes 1 µs on the symmetric heap and 10 µs outside; `peers` has the others."""
    ours = points("all_reduce", [1.0] * 7) + points("all_reduce_unregistered", [10.0] * 7) + points("memcpy", [2.0] * 7)
    candidates = {"ours": ours} | {name.replace("_", " "): found for name, found in peers.items()}
    return {"date": "a day", "cpu": "a CPU", "cores": 2, "dtype": "fp32", "many_ranks": many([40.0] * 7), "candidates": [
        {"candidate": name, "version": "1", "method": "some method", "points": found} for name, found in candidates.items()]}


def many(us):
    """Returns the results of more ranks than cores."""
    calls = {"all_reduce": us, "all_reduce_unregistered": [2 * each for each in us], "memcpy": [0.1] * len(us)}
    return {"points": [{"bytes": SMALLEST, "mode": "warm", "call": call, "net_us": taken} for call, taken in calls.items()]}


def report(**peers):
    return comm_report.report(results(**peers))


class Variants(unittest.TestCase):
    def test_a_loss_outside_the_symmetric_heap_alone_is_reported(self):
        text = report(Gloo=points("all_reduce", [4.0] * 7, s4096=[30.0] * 7))
        self.assertIn("Faster than ours, symmetric heap: none of Gloo at any size.", text)
        self.assertIn("Faster than ours, unregistered tensor: Gloo at 64 KB (0.40×); Gloo at 1 MB (0.40×)", text)
        self.assertNotIn("Gloo at 4 KB (", text)

    def test_each_variant_has_its_own_ratios(self):
        text = report(Open_MPI=points("all_reduce", [30.0] * 7))
        self.assertIn("| Open MPI, 64 MB | 30.00× | 30.00–30.00 | 7 | ≥ 8× | met |", text)
        self.assertIn("| Open MPI, 64 MB | 3.00× | 3.00–3.00 | 7 | — |  |", text)

    def test_only_gloo_is_compared_with_the_python_variant(self):
        ours = points("all_reduce", [3.0] * 7)
        text = report(**{comm_report.TORCH: ours, "Gloo": points("all_reduce", [30.0] * 7), "Open MPI": ours})
        python = text.split("| to ours, torch.distributed |")[1].split("Faster than")[0]
        self.assertIn("| Gloo, 4 KB | 10.00× |", python)
        self.assertNotIn("Open MPI", python)
        self.assertIn("Faster than ours, torch.distributed: none of Gloo at any size.", text)

    def test_unknown_calls_are_skipped(self):
        document = results(Gloo=points("all_reduce", [4.0] * 7))
        document["candidates"][0]["points"] += points("all_reduce_of_tomorrow", [0.1] * 7)
        self.assertNotIn("tomorrow", comm_report.report(document))


class Placement(unittest.TestCase):
    def test_gloo_is_the_faster_of_two_placements_at_each_size(self):
        text = report(**{"Gloo, bound": points("all_reduce", [300.0] * 7),
                       "Gloo, unbound": points("all_reduce", [500.0] * 7, s4096=[200.0] * 7)})
        self.assertIn("| Gloo, 4 KB | 200.00× |", text)
        self.assertIn("| Gloo, 64 KB | 300.00× |", text)
        self.assertIn("unbound: Gloo, bound at 64 KB, 1 MB, 4 MB, 64 MB; Gloo, unbound at 4 KB.", text)

    def test_gloo_with_one_placement_uses_it(self):
        text = report(**{"Gloo, unbound": points("all_reduce", [500.0] * 7)})
        self.assertIn("| Gloo, 4 KB | 500.00× |", text)

    def test_one_processor_of_every_core(self):
        two_threads_each = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
        self.assertEqual(cpu_of_each_core([3, 2, 1, 0], two_threads_each.get), [0, 1])
        neighbors = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
        self.assertEqual(cpu_of_each_core([1, 2, 3], neighbors.get), [1, 2])


class NetTimes(unittest.TestCase):
    """Net times, which noise may make 0 or less."""

    def test_a_round_without_time_is_dropped_and_counted(self):
        document = results(Gloo=points("all_reduce", [30.0] * 7))
        for point in document["candidates"][0]["points"]:
            if point["call"] == "all_reduce" and point["bytes"] == SMALLEST and point["mode"] == "rewritten":
                point["net_us"] = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, -0.2]
        text = comm_report.report(document)
        self.assertIn("| Gloo, 4 KB | 30.00× | 30.00–30.00 | 5, 2 dropped | ≥ 1× | met |", text)

    def test_no_time_in_any_round(self):
        document = results(Gloo=points("all_reduce", [30.0] * 7, s4096=[-1.0] * 7))
        text = comm_report.report(document)
        self.assertIn("| Gloo, 4 KB | — | — | 0, 7 dropped |", text)
        self.assertIn("| 4 KB | 1.00 | 10.00 | ≤ 0 | 2.00 |", text)
        self.assertIn("</svg>", comm_report.drawing(document))


class Verdicts(unittest.TestCase):
    def test_few_rounds_have_none(self):
        document = results(Gloo=points("all_reduce", [300.0] * 4)) | {"many_ranks": many([40.0] * 4)}
        for point in document["candidates"][0]["points"]:
            point["net_us"] = point["net_us"][:4]
        text = comm_report.report(document)
        self.assertIn("| Gloo, 4 KB | 300.00× | 300.00–300.00 | 4 | ≥ 200× | too few rounds |", text)
        self.assertIn("| ours, symmetric heap | 0.50× | 0.50–0.50 | 4 | ≤ 1.25× | too few rounds |", text)
        self.assertIn("target at most 1 µs: too few rounds.", text)
        self.assertNotRegex(text, r"\bmet\b")
        self.assertNotIn("none of", text)

    def test_two_rounds_show_min_and_max(self):
        text = report(Gloo=points("all_reduce", [1.5, 2.5]))
        self.assertIn("| Gloo, 4 KB | 2.00× | 1.50–2.50 (min–max) | 2 | ≥ 1× | too few rounds |", text)

    def test_a_lower_quartile_below_one_is_no_win(self):
        text = report(Open_MPI=points("all_reduce", [0.9, 0.9, 1.1, 1.2, 1.2, 1.3, 1.4]))
        self.assertIn("| Open MPI, 4 KB | 1.20× | 0.90–1.30 | 7 | ≥ 1× | open: lower quartile below 1 |", text)
        self.assertIn("Slower than ours, symmetric heap by the median, but not in a quarter of the rounds: Open MPI at 4 KB", text)
        self.assertNotIn("none of", text)


class ManyRanks(unittest.TestCase):
    def report(self, us):
        return comm_report.report(results(Gloo=points("all_reduce", [4.0] * 7)) | {"many_ranks": many(us)})

    def test_the_median_is_compared_with_the_target(self):
        self.assertIn("| ours, symmetric heap | 50.00 | 5 | ≤ 50 µs | met |", self.report([10.0, 20.0, 50.0, 60.0, 70.0]))
        self.assertIn("| ours, symmetric heap | 51.00 | 5 | ≤ 50 µs | **missed** |", self.report([51.0] * 5))

    def test_unregistered_tensors_have_no_target(self):
        self.assertIn("| ours, unregistered tensor | 80.00 | 5 | — |  |", self.report([40.0] * 5))


if __name__ == "__main__":
    unittest.main()

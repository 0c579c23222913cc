"""What benchmarks/run.py comm says of rounds that are made up: who is faster, where, and how surely."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import comm_report  # noqa: E402
from comm_report import SIZES  # noqa: E402
from machine import cpu_of_each_core  # noqa: E402

SMALLEST, LARGEST = SIZES[0], SIZES[-1]


def points(call, us, **by_size):
    """Of all sizes in both modes; `us` of every round, in places of its own for sizes that are named s4096 and the like."""
    return [{"bytes": size, "mode": mode, "call": call, "raw_us": rounds, "net_us": rounds}
            for size in SIZES for mode in ("warm", "rewritten") for rounds in [by_size.get(f"s{size}", us)]]


def results(**peers):
    """Ours takes 1 µs in the arena and 10 in foreign memory; `peers`: what they take."""
    ours = points("all_reduce", [1.0] * 7) + points("all_reduce_unregistered", [10.0] * 7) + points("memcpy", [2.0] * 7)
    contenders = {"ours": ours} | {name.replace("_", " "): found for name, found in peers.items()}
    return {"date": "a day", "cpu": "a CPU", "cores": 2, "dtype": "fp32", "many_ranks": many([40.0] * 7), "contenders": [
        {"contender": name, "version": "1", "how": "somehow", "points": found} for name, found in contenders.items()]}


def many(us):
    """More ranks than cores."""
    calls = {"all_reduce": us, "all_reduce_unregistered": [2 * each for each in us], "memcpy": [0.1] * len(us)}
    return {"points": [{"bytes": SMALLEST, "mode": "warm", "call": call, "net_us": taken} for call, taken in calls.items()]}


def told(**peers):
    return comm_report.told(results(**peers))


class Ways(unittest.TestCase):
    def test_a_loss_in_foreign_memory_alone_is_told(self):
        text = told(Gloo=points("all_reduce", [4.0] * 7, s4096=[30.0] * 7))
        self.assertIn("Faster than ours, arena: none of Gloo at any size.", text)
        self.assertIn("Faster than ours, foreign memory: Gloo at 64 KB (0.40×); Gloo at 1 MB (0.40×)", text)
        self.assertNotIn("Gloo at 4 KB (", text)

    def test_each_way_has_ratios_of_its_own(self):
        text = told(Open_MPI=points("all_reduce", [30.0] * 7))
        self.assertIn("| Open MPI, 64 MB | 30.00× | 30.00–30.00 | 7 | ≥ 8× | met |", text)
        self.assertIn("| Open MPI, 64 MB | 3.00× | 3.00–3.00 | 7 | — |  |", text)

    def test_gloo_alone_is_set_beside_ours_from_python(self):
        ours = points("all_reduce", [3.0] * 7)
        text = told(**{comm_report.TORCH: ours, "Gloo": points("all_reduce", [30.0] * 7), "Open MPI": ours})
        python = text.split("| to ours, torch.distributed |")[1].split("Faster than")[0]
        self.assertIn("| Gloo, 4 KB | 10.00× |", python)
        self.assertNotIn("Open MPI", python)
        self.assertIn("Faster than ours, torch.distributed: none of Gloo at any size.", text)

    def test_a_call_that_is_not_known_is_left_out(self):
        document = results(Gloo=points("all_reduce", [4.0] * 7))
        document["contenders"][0]["points"] += points("all_reduce_of_tomorrow", [0.1] * 7)
        self.assertNotIn("tomorrow", comm_report.told(document))


class Placement(unittest.TestCase):
    def test_gloo_is_the_better_of_two_placements_at_each_size(self):
        text = told(**{"Gloo, bound": points("all_reduce", [300.0] * 7),
                       "Gloo, unbound": points("all_reduce", [500.0] * 7, s4096=[200.0] * 7)})
        self.assertIn("| Gloo, 4 KB | 200.00× |", text)
        self.assertIn("| Gloo, 64 KB | 300.00× |", text)
        self.assertIn("unbound: Gloo, bound at 64 KB, 1 MB, 4 MB, 64 MB; Gloo, unbound at 4 KB.", text)

    def test_gloo_in_one_placement_is_that_one(self):
        text = told(**{"Gloo, unbound": points("all_reduce", [500.0] * 7)})
        self.assertIn("| Gloo, 4 KB | 500.00× |", text)

    def test_one_processor_of_every_core(self):
        two_threads_each = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}
        self.assertEqual(cpu_of_each_core([3, 2, 1, 0], two_threads_each.get), [0, 1])
        neighbors = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
        self.assertEqual(cpu_of_each_core([1, 2, 3], neighbors.get), [1, 2])


class NetTimes(unittest.TestCase):
    """Of which noise may leave nothing."""

    def test_a_round_without_time_is_dropped_and_counted(self):
        document = results(Gloo=points("all_reduce", [30.0] * 7))
        for point in document["contenders"][0]["points"]:
            if point["call"] == "all_reduce" and point["bytes"] == SMALLEST and point["mode"] == "rewritten":
                point["net_us"] = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, -0.2]
        text = comm_report.told(document)
        self.assertIn("| Gloo, 4 KB | 30.00× | 30.00–30.00 | 5, 2 dropped | ≥ 1× | met |", text)

    def test_no_time_in_any_round(self):
        document = results(Gloo=points("all_reduce", [30.0] * 7, s4096=[-1.0] * 7))
        text = comm_report.told(document)
        self.assertIn("| Gloo, 4 KB | — | — | 0, 7 dropped |", text)
        self.assertIn("| 4 KB | 1.00 | 10.00 | ≤ 0 | 2.00 |", text)
        self.assertIn("</svg>", comm_report.drawing(document))


class Verdicts(unittest.TestCase):
    def test_few_rounds_have_none(self):
        document = results(Gloo=points("all_reduce", [300.0] * 4)) | {"many_ranks": many([40.0] * 4)}
        for point in document["contenders"][0]["points"]:
            point["net_us"] = point["net_us"][:4]
        text = comm_report.told(document)
        self.assertIn("| Gloo, 4 KB | 300.00× | 300.00–300.00 | 4 | ≥ 200× | too few rounds |", text)
        self.assertIn("| ours, arena | 0.50× | 0.50–0.50 | 4 | ≤ 1.25× | too few rounds |", text)
        self.assertIn("target at most 1 µs: too few rounds.", text)
        self.assertNotIn("met", text)
        self.assertNotIn("none of", text)

    def test_of_two_rounds_all_is_shown(self):
        text = told(Gloo=points("all_reduce", [1.5, 2.5]))
        self.assertIn("| Gloo, 4 KB | 2.00× | 1.50–2.50 (min–max) | 2 | ≥ 1× | too few rounds |", text)

    def test_a_lower_quartile_below_one_is_no_win(self):
        text = told(Open_MPI=points("all_reduce", [0.9, 0.9, 1.1, 1.2, 1.2, 1.3, 1.4]))
        self.assertIn("| Open MPI, 4 KB | 1.20× | 0.90–1.30 | 7 | ≥ 1× | open: lower quartile below 1 |", text)
        self.assertIn("Slower than ours, arena by the median, but not in a quarter of the rounds: Open MPI at 4 KB", text)
        self.assertNotIn("none of", text)


class ManyRanks(unittest.TestCase):
    def told(self, us):
        return comm_report.told(results(Gloo=points("all_reduce", [4.0] * 7)) | {"many_ranks": many(us)})

    def test_the_median_is_held_to_the_target(self):
        self.assertIn("| ours, arena | 50.00 | 5 | ≤ 50 µs | met |", self.told([10.0, 20.0, 50.0, 60.0, 70.0]))
        self.assertIn("| ours, arena | 51.00 | 5 | ≤ 50 µs | **missed** |", self.told([51.0] * 5))

    def test_foreign_memory_has_no_target(self):
        self.assertIn("| ours, foreign memory | 80.00 | 5 | — |  |", self.told([40.0] * 5))


if __name__ == "__main__":
    unittest.main()

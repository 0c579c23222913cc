"""The page of `shardwise report` in Chromium, opened from a file: its pictures and tables show the figures of two runs and a trace."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "planner"))

from browser import Browser  # noqa: E402

BUILD = pathlib.Path(os.environ["SHARDWISE_BUILD"])
PICTURES = BUILD / "report_pictures"  # of the last run, to look at
TEXT = "To be, or not to be: that is the question. " * 400
TRAIN = ["--preset", "tiny", "--seq-len", "32", "--batch-size", "2", "--steps", "60", "--val-fraction", "0.2", "--eval-every", "20"]
LABELS = {"computing": "c1", "communicating": "c3", "waiting": "c4"}


def shardwise(*words, **options):
    return subprocess.run([BUILD / "shardwise", *words], check=True, capture_output=True, text=True, timeout=300, **options).stdout


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())
        cls.scratch = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        PICTURES.mkdir(exist_ok=True)
        (cls.scratch / "text").write_text(TEXT)
        for ranks in "21":
            shardwise("train", "--text", cls.scratch / "text", *TRAIN, "--tp", ranks, "--report", cls.scratch / f"tp{ranks}.json",
                      *(["--profile", cls.scratch / "trace.json"] if ranks == "2" else []))
        cls.files = [cls.scratch / "tp2.json", cls.scratch / "tp1.json"]
        cls.runs = [json.loads(file.read_text()) for file in cls.files]
        shardwise("report", *cls.files, "--profile", cls.scratch / "trace.json", "-o", cls.scratch / "page.html")
        cls.browser.call("Page.navigate", url=f"file://{cls.scratch}/page.html")
        cls.browser.evaluate("""new Promise((done) => {
          const look = () => document.body && "ready" in document.body.dataset ? done(true) : setTimeout(look, 20);
          look();
        })""")

    def value(self, script):
        return self.browser.evaluate(script)

    def section(self, title):
        """Returns an expression for the section with this heading."""
        return f"[...document.querySelectorAll('section')].find((one) => one.querySelector('h2').textContent === {json.dumps(title)})"

    def table(self, title):
        return self.value(f"[...{self.section(title)}.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))")

    def points(self, title, css):
        """Returns the points of the curve with exactly these classes."""
        found = self.value(f"{self.section(title)}.querySelector({json.dumps(f'[class={json.dumps(css)}]')}).getAttribute('points')")
        return [tuple(map(float, point.split(","))) for point in found.split()]

    def test_each_step_of_both_runs_has_a_point_in_one_picture(self):
        losses = [[step["loss"] for step in run["steps"]] for run in self.runs]
        drawn = [self.points("Loss", f"line {css}") for css in ("c1", "c3")]
        for loss, points in zip(losses, drawn):
            self.assertEqual(len(points), len(loss))
        # One scale: pixels are a linear function of all losses.
        pairs = [(value, y) for loss, points in zip(losses, drawn) for value, (_, y) in zip(loss, points)]
        (low, bottom), (high, top) = min(pairs), max(pairs)
        for value, y in pairs:
            self.assertAlmostEqual(y, bottom + (value - low) / (high - low) * (top - bottom), delta=0.11)
        self.assertLess(top, bottom)
        self.assertEqual(self.value(f"{self.section('Loss')}.querySelectorAll('circle').length"), 6)

    def test_differences_are_those_of_the_files(self):
        both = [[step["loss"] for step in run["steps"]] for run in self.runs]
        largest = max(abs(a - b) for a, b in zip(*both))
        note = self.value("document.querySelector('.difference').textContent")
        self.assertIn("tp1.json and tp2.json: largest difference of 60 steps", note)
        self.assertAlmostEqual(float(re.search(r"common (\S+);", note)[1]), largest, delta=0.06 * largest)

    def test_bars_are_as_long_as_the_mean_times(self):
        steps = self.runs[0]["steps"][2:]
        for rank in range(2):
            step, comm, wait = (sum(one[f"{name}_ms"][rank] for one in steps) / len(steps) for name in ("step", "comm", "wait"))
            widths = self.value(f"[...{self.section('Mean step')}.querySelectorAll('rect')].map((one) => [one.className.baseVal, one.width.baseVal.value])")
            of_rank = widths[3 * rank:3 * rank + 3]
            self.assertEqual([css for css, _ in of_rank], [f"part {css}" for css in LABELS.values()])
            total = sum(width for _, width in of_rank)
            for (_, width), ms in zip(of_rank, (step - comm, comm - wait, wait)):
                self.assertAlmostEqual(width / total, ms / step, delta=1e-3)

    def test_memory_has_measured_and_planned_bars_of_each_rank(self):
        totals = self.value(f"[...{self.section('Peak memory')}.querySelectorAll('.total')].map((one) => one.textContent)")
        expected = [sum(rank[name].values()) / 1e6 for run in self.runs for rank in run["ranks"] for name in ("memory", "expected_memory")]
        self.assertEqual(totals, [f"{mb:.1f} MB" for mb in expected])

    def test_tables_have_the_figures_of_the_files(self):
        ranks = [rank for run in self.runs for rank in run["ranks"]]
        self.assertEqual([row[1:] for row in self.table("Bytes of a step")],
                         [[f"{rank[name] / 1e6:.3f}" for name in ("comm_bytes", "expected_comm_bytes", "copied_bytes")] for rank in ranks])
        runs = self.table("Runs")
        self.assertEqual([row[0] for row in runs], ["tp2.json", "tp1.json"])
        self.assertEqual([row[4] for row in runs], [f"{run['steps'][-1]['loss']:.4f}" for run in self.runs])
        shown = sum(int((re.search(r"\((\d+)\)$", row[0]) or [0, 1])[1]) for row in self.table("Shards of every parameter"))
        self.assertEqual(shown, sum(len(run["parameters"]) for run in self.runs))

    def test_the_timeline_has_all_ops_of_the_last_step(self):
        events = [event for event in json.loads((self.scratch / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
        for rank in range(2):
            own = [event for event in events if event["pid"] == rank]
            start = max(i for i, event in enumerate(own) if event["name"] == "step")
            ops = own[start + 1:]
            drawn = self.value(f"{self.section('Timeline')}.querySelectorAll('.time svg')[{rank}].querySelectorAll('rect:not(.c4)').length")
            self.assertEqual(drawn, len(ops))
            row = self.table("Timeline")[rank]
            self.assertEqual(row[1], f"{own[start]['dur'] / 1e3:.2f}")
            self.assertAlmostEqual(float(row[4]), sum(op["args"]["waiting_us"] for op in ops) / 1e3, delta=0.006)
            self.assertAlmostEqual(sum(map(float, row[2:])), float(row[1]), delta=0.03)

    def test_the_pointer_reads_the_values_of_a_step(self):
        self.value(f"""(() => {{
          const chart = {self.section('Loss')}.querySelector("svg"), box = chart.getBoundingClientRect();
          chart.dispatchEvent(new PointerEvent("pointermove", {{clientX: box.right, clientY: box.top + 50}}));
        }})()""")
        last = [run["steps"][-1]["loss"] for run in self.runs]
        self.assertEqual(self.value("document.querySelector('.readout').textContent"),
                         f"step 60: tp2.json {last[0]:.4f}, tp1.json {last[1]:.4f}")

    def test_nothing_is_wider_than_the_page_or_asks_the_network(self):
        for device, width in (("desktop", 1280), ("phone", 390)):
            for scheme in ("light", "dark"):
                self.browser.show(width, 900, scheme)
                self.browser.screenshot(PICTURES / f"{device}-{scheme}.png")
                self.assertEqual(self.value("document.documentElement.scrollWidth"), self.value("document.documentElement.clientWidth"))
                lightness = sum(map(int, re.findall(r"\d+", self.value("getComputedStyle(document.body).backgroundColor"))))
                self.assertEqual(lightness > 384, scheme == "light")
        self.assertEqual(self.value("performance.getEntriesByType('resource').length"), 0)


if __name__ == "__main__":
    unittest.main()

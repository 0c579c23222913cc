"""The figures of docs/figures: drawn again they are the same bytes, stand alone, and have words that fit and can be read as text."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from functools import cache
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs/figures"
SVG = "{http://www.w3.org/2000/svg}"
# Width of a character in em, and height of a line: a little less than those of common fonts, so that what is reported does overlap.
EM, LINE, FONT = 0.5, 0.75, 12
COLUMN = 8  # px of a character in a diagram


def tool(*arguments):
    return subprocess.run([sys.executable, ROOT / "tools/figures", *arguments], capture_output=True, text=True, env=os.environ)


@cache
def printed(name):
    return tool(name, "--text").stdout


@cache
def names():
    return tool("--list").stdout.split()


def moves(element):
    """(dx, dy, is rotated) of an element's transform."""
    transform = element.get("transform", "")
    found = re.match(r"translate\((-?[\d.]+) (-?[\d.]+)\)", transform)
    return (*(map(float, found.groups()) if found else (0.0, 0.0)), "rotate(-90)" in transform)


class Words:
    """A text with its estimated rectangle on the page."""

    def __init__(self, element, left, top):
        self.text = element.text
        dx, dy, self.is_rotated = moves(element)
        x, y = left + dx + float(element.get("x", 0)), top + dy + float(element.get("y", 0))
        width, height = EM * FONT * len(self.text), LINE * FONT
        before = {"start": 0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
        if self.is_rotated:
            self.box = (x - height, y + before - width, x, y + before)
        else:
            self.box = (x - before, y - height, x - before + width, y)

    def meets(self, other):
        (a, b, c, d), (e, f, g, h) = self.box, other.box
        return a < g and e < c and b < h and f < d

    def is_inside(self, box):
        return box[0] <= self.box[0] and box[1] <= self.box[1] and self.box[2] <= box[2] and self.box[3] <= box[3]


def words_in(element, left=0.0, top=0.0):
    for child in element:
        if child.tag == SVG + "text":
            yield Words(child, left, top)
        elif child.tag == SVG + "g":
            dx, dy, _ = moves(child)
            yield from words_in(child, left + dx, top + dy)


def boxes_in(element):
    """Yields (rectangle, words) of every box of a diagram: a group of a rect and the words in it."""
    for group in element.iter(SVG + "g"):
        rect = group.find(SVG + "rect")
        if rect is not None and group.get("transform") is None:
            x, y, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            yield (x, y, x + width, y + height), list(words_in(group))


class Committed(unittest.TestCase):
    def test_figures_are_those_that_the_tool_draws(self):
        with tempfile.TemporaryDirectory() as scratch:
            drawn = tool("--out", scratch)
            self.assertEqual(drawn.returncode, 0, drawn.stderr)
            found = {path.name: path.read_text() for path in Path(scratch).iterdir()}
        self.assertEqual(set(found), {name + ".svg" for name in names()})
        self.assertEqual(set(found), {path.name for path in FIGURES.glob("*.svg")})
        for name, content in found.items():
            self.assertEqual((FIGURES / name).read_text(), content, f"{name} must be as drawn now; run make figures")


def drawings():
    """(name, text, root element) of every figure."""
    for path in sorted(FIGURES.glob("*.svg")):
        yield path.stem, path.read_text(), xml.fromstring(path.read_text())


class Drawings(unittest.TestCase):
    def test_say_what_they_show(self):
        for name, _, svg in drawings():
            with self.subTest(name):
                title, description = svg.find(SVG + "title"), svg.find(SVG + "desc")
                self.assertEqual(svg.get("aria-labelledby").split(), [title.get("id"), description.get("id")])
                self.assertGreater(len(title.text), 10)
                self.assertGreater(len(description.text), 60)

    def test_need_nothing_else(self):
        for name, text, svg in drawings():
            with self.subTest(name):
                self.assertEqual(text.count("://"), 1, "only the namespace names an address")
                for word in ("href", "url(", "@import", "<script", "<image", "<foreignObject"):
                    self.assertNotIn(word, text)

    def test_have_colors_for_light_and_dark_pages(self):
        for name, text, _ in drawings():
            light, dark = text.split("@media (prefers-color-scheme: dark)")
            used = set(re.findall(r"var\((--\w+)\)", text))
            self.assertGreater(len(used), 10)
            self.assertLessEqual(used, set(re.findall(r"(--\w+):#", light)))
            self.assertLessEqual(used, set(re.findall(r"(--\w+):#", dark)))

    def test_words_are_on_the_page_and_do_not_overlap(self):
        for name, _, svg in drawings():
            with self.subTest(name):
                words = list(words_in(svg))
                self.assertGreater(len(words), 10)
                page = (0, 0, float(svg.get("width")), float(svg.get("height")))
                for each in words:
                    self.assertTrue(each.is_inside(page), each.text)
                for a, b in combinations(words, 2):
                    self.assertFalse(a.meets(b), f"{a.text!r} and {b.text!r}")

    def test_words_fit_into_their_boxes(self):
        count = 0
        for name, _, svg in drawings():
            with self.subTest(name):
                for box, words in boxes_in(svg):
                    for each in words:
                        self.assertTrue(each.is_inside(box), each.text)
                        self.assertLessEqual(COLUMN * len(each.text), box[2] - box[0], each.text)
                        count += 1
        self.assertGreater(count, 200)


class Text(unittest.TestCase):
    def test_has_the_words_of_the_drawing(self):
        for name in names():
            with self.subTest(name):
                lines = printed(name).splitlines()
                self.assertGreater(len(lines), 8)
                self.assertLess(max(map(len, lines)), 170)
                if "┌" in printed(name):  # a diagram
                    for words in words_in(xml.fromstring((FIGURES / f"{name}.svg").read_text())):
                        self.assertIn(words.text, printed(name))

    def test_an_all_reduce_ends_with_the_sums_of_its_start(self):
        for name in ("ring", "two_shot"):
            matrices = [[list(map(int, re.findall(r"\d+", cell))) for cell in re.findall(r"│(?: +\d+ │){4}", line)]
                        for line in printed(name).splitlines() if line.startswith("r")]
            start = [row[0] for row in matrices[:4]]
            for row in matrices[-4:]:
                self.assertEqual(row[-1], [sum(column) for column in zip(*start)])


class FromProfile(unittest.TestCase):
    """--from draws a run of `shardwise profile --json`."""

    def drawn(self, name, found, *more):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "run.json"
            path.write_text(found if isinstance(found, str) else json.dumps(found))
            return tool(name, "--from", path, *more)

    def cells(self, done):
        """The words of the lines of the text form."""
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line.split() for line in done.stdout.splitlines()]

    def mlp(self):
        def row(ranks, hidden, ratio, model):
            return {"ranks": ranks, "hidden": hidden, "ratio": ratio, "model_ratio": model, "measurement": {"oversubscribed": ranks > 2},
                    "rows_per_second_per_rank": 100.0 * hidden / ranks, "model_rows_per_second_per_rank": 110.0 * hidden / ranks}

        one = {"ranks": 1, "hidden": 8, "ratio": 0, "measurement": {"oversubscribed": False}, "rows_per_second_per_rank": 1000.0}
        return {"command": "profile mlp", "measured": True, "cpu": "a processor", "dtype": "fp32", "seq_len": 12, "batch_size": 3,
                "backward": True, "fit": {"flop_per_second": 2e9, "bytes_per_second": 5e8},
                "rows": [one, row(2, 8, 0.5, 0.4), row(4, 8, 1.7, 1.2), row(2, 16, 0.21, 0.2)]}

    def test_ratios_are_drawn_with_the_model(self):
        lines = self.cells(self.drawn("profile_ratio", self.mlp(), "--text"))
        # Over the hidden size: 2 and 4 ranks, then the model of both.
        self.assertIn(["8", "0.5", "1.7", "0.4", "1.2"], lines)
        self.assertIn(["16", "0.21", "-", "0.2", "-"], lines)
        # Over ranks: both sizes, then the model, in proportion to R - 1 and beyond what was measured.
        self.assertIn(["2", "0.5", "0.21", "0.4", "0.2"], lines)
        self.assertIn(["4", "1.7", "-", "1.2", "0.6"], lines)
        self.assertIn(["8", "-", "-", "2.8", "1.4"], lines)
        text = self.drawn("profile_ratio", self.mlp(), "--text").stdout
        for words in ("a processor, fp32, 3 x 12 tokens, forward and backward", "2.0 GFLOP/s and 0.50 GB/s", "With 4 ranks several share a core"):
            self.assertIn(words, text)

    def test_throughput_has_the_boundary_of_a_host(self):
        run = self.mlp() | {"emulated_hosts": {"hosts": 2, "ranks_per_host": 2, "delay_seconds": 5e-5, "bits_per_second": 1e10}}
        lines = self.cells(self.drawn("profile_degree", run, "--text"))
        self.assertIn(["1", "1,000", "-", "-"], lines)
        self.assertIn(["2", "400", "800", "440"], lines)
        self.assertIn(["4", "200", "-", "220"], lines)
        self.assertIn("2 hosts of 2 ranks are emulated on this machine, with 50 µs and 10 Gbit/s between them.",
                      self.drawn("profile_degree", run, "--text").stdout)
        with tempfile.TemporaryDirectory() as scratch:
            self.assertEqual(self.drawn("profile_degree", run, "--out", scratch).returncode, 0)
            svg = xml.fromstring((Path(scratch) / "profile_degree.svg").read_text())
        self.assertIn("one host", [element.text for element in svg.iter(SVG + "text")])
        # Measured points with a model's curve are not joined by a line; the others are.
        self.assertEqual(len(list(svg.iter(SVG + "polyline"))), 2 * 2)

    def test_products_are_drawn_below_their_roof(self):
        product = {"flop_per_second": 3e10, "roof_flop_per_second": 5e10}
        run = {"command": "profile products", "measured": True, "cpu": "a processor", "dtype": "bf16", "hidden": 64, "teams": [
            {"ranks": 2, "squares": [product | {"n": 32}, product | {"n": 64, "flop_per_second": 4e10}], "rows": [product | {"rows": 8}]}]}
        lines = self.cells(self.drawn("profile_products", run, "--text"))
        self.assertIn(["32", "30", "50"], lines)
        self.assertIn(["64", "40", "50"], lines)
        self.assertIn(["8", "30", "50"], lines)

    def test_other_files_are_refused(self):
        by_model = self.mlp() | {"measured": False}
        step = self.mlp() | {"command": "profile step"}
        alone = self.mlp() | {"rows": self.mlp()["rows"][:1]}
        for found, words in (("{", "--from must be a JSON file"), ([], "must be the JSON of a measured profile mlp or profile block; got None"),
                             (by_model, "must be the JSON of a measured"), (step, "got profile step"), (alone, "a row of several ranks; got none")):
            refused = self.drawn("profile_ratio", found, "--text")
            self.assertEqual((refused.returncode, refused.stdout), (1, ""))
            self.assertIn(words, refused.stderr)
        for names in ([], ["ratio"], ["profile_ratio", "profile_degree"]):
            refused = tool(*names, "--from", "run.json")
            self.assertEqual(refused.returncode, 2)
            self.assertIn("--from needs one NAME of profile_products, profile_ratio, profile_degree; got", refused.stderr)


class Tool(unittest.TestCase):
    def test_refuses_an_unknown_name(self):
        refused = tool("nothing")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("NAME must be one of shards, column_row,", refused.stderr)
        self.assertIn("got nothing", refused.stderr)

    def test_words_that_do_not_fit_are_an_error(self):
        script = "import sys; sys.path.insert(0, 'tools/charts'); from scene import Scene; Scene().box(0, 0, 8, 3, ['too long'])"
        failed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
        self.assertIn("words must fit into their box; got 'too long' in 8 x 3 cells", failed.stderr)

    def test_a_timeline_is_recorded_from_the_fastest_step(self):
        def event(name, rank, start, duration, waiting=0.0, part="layer 0"):
            return {"ph": "X", "name": name, "pid": rank, "ts": start, "dur": duration, "cat": part, "args": {"waiting_us": waiting}}

        trace = [{"ph": "M", "pid": 0, "name": "process_name"}]
        for rank in (0, 1):
            trace += [event("step", rank, 100, 90), event("product", rank, 110, 5),
                      event("step", rank, 200 + rank, 50), event("all_gather", rank, 210, 20, 15.0), event("adamw", rank, 240, 3, part="none")]
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "trace.json"
            path.write_text(json.dumps({"traceEvents": trace}))
            done = subprocess.run([sys.executable, ROOT / "tools/figures/record_timeline.py", path, "a run"], capture_output=True, text=True)
        found = json.loads(done.stdout)
        self.assertEqual(found["command"], "a run")
        self.assertEqual([rank["start"] for rank in found["ranks"]], [0, 1])
        self.assertEqual(found["ranks"][1]["events"], [["all_gather", "layer 0", 10, 20, 15.0], ["adamw", "optimizer", 40, 3, 0.0]])


if __name__ == "__main__":
    unittest.main()

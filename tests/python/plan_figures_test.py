"""The example that redoes figures of the documents prints those figures, without ranks and without torch."""
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def cells_of(line):
    return re.split(r"  +", line)


class PlanFiguresTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="shardwise-figures-")
        cls.addClassCleanup(directory.cleanup)
        picture = Path(directory.name) / "memory.svg"
        done = subprocess.run([sys.executable, ROOT / "examples/python/plan_figures.py", picture], capture_output=True, text=True,
                              timeout=600)
        assert done.returncode == 0, done.stderr
        cls.lines = [line.rstrip() for line in done.stdout.splitlines()]
        cls.picture = ElementTree.parse(picture).getroot()

    def rows_after(self, heading):
        """Returns the cells of the table that begins below the line with these words."""
        begin = next(i for i, line in enumerate(self.lines) if heading in line)
        return [cells_of(line) for line in self.lines[begin + 1:self.lines.index("", begin)]]

    def test_memory_over_tp(self):
        _, *rows = self.rows_after("GB of a rank in training")
        peaks = {mode: [float(peak) for peak in row] for mode, *row in rows}
        self.assertEqual([*peaks], ["TP", "TP+SP", "TP+SP, selective", "TP, full"])
        for row in peaks.values():
            self.assertEqual(row, sorted(row, reverse=True))
        self.assertLess(peaks["TP+SP"][3], peaks["TP"][3])
        labels = [float(text.text) for text in self.picture.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
        for label, peak in zip(labels, (peak for row in peaks.values() for peak in row), strict=True):
            self.assertLessEqual(abs(label - peak), 0.55)  # the label is rounded to 1, the table to 0.1
        self.assertEqual(len(self.picture.findall(f"{SVG}rect")), 1 + 4 + 16)

    def test_the_ranking_is_that_of_cli_md(self):
        shown = {tuple(cells_of(line)[:3]): cells_of(line) for line in (ROOT / "docs/cli.md").read_text().splitlines()
                 if re.match(r"\d+  +\d+  +\d+  +(yes|no)", line)}
        _, *rows = self.rows_after("llama-3.1-70b, 64 x h100: ")
        self.assertEqual(len(rows), 4)
        for row in rows:
            tp, pp, dp, _, zero, _, _, recompute, gigabytes, _, _, milliseconds, *_, tokens, _, _ = shown[tuple(row[:3])]
            self.assertEqual(row, [tp, pp, dp, zero, recompute, gigabytes, milliseconds, tokens])

    def test_the_fewest_devices_are_those_of_guide_md(self):
        shown = dict(re.findall(r"^\| (\S+) \| (\d+(?: \(.*?\))? \| \d+) \|", (ROOT / "docs/guide.md").read_text(), re.MULTILINE))
        rows = [cells_of(line) for line in self.lines if re.match(r"\S+ +\d+ +\d+ +tp", line)]
        self.assertEqual(len(rows), 5)
        for name, generate, train, _ in rows:
            self.assertEqual(re.sub(r" \(.*?\)", "", shown[name]), f"{generate} | {train}")

    def test_what_each_rank_holds_is_that_of_cli_md(self):
        shown = (ROOT / "docs/cli.md").read_text()
        begin = next(i for i, line in enumerate(self.lines) if line.startswith("tensor "))
        tensors = self.lines[begin + 1:self.lines.index("", begin)]
        self.assertEqual(len(tensors), 14)
        for line in tensors:
            name, shape, *_, last = cells_of(line)
            self.assertRegex(shown, rf"(?m)^{re.escape(name)} +{shape} .*  {re.escape(last)}$")


if __name__ == "__main__":
    unittest.main()

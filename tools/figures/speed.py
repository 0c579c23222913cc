"""How much longer others take than shardwise, from the records in benchmarks/results/; slower cases are drawn as well.

Every bar is the median ratio of one record, its whisker the quartiles.
"""
import math
import re
import sys

from page import bold, document, number, table, text
from program import ROOT

RESULTS = ROOT / "benchmarks/results"
# Title, and per bar: the machine, the record, its row.
GROUPS = [
    ("training step, fp32: PyTorch eager, 2 threads / TP=2+SP", [
        ("EPYC, family 26", "2026-11-21-x86_64-train_step", "PyTorch eager / ours TP=2+SP"),
        ("Xeon, family 6", "2026-11-21-x86_64-intel-train_step", "PyTorch eager / ours TP=2+SP"),
        ("EPYC, family 25", "2026-11-22-x86_64-train_step", "PyTorch eager / ours TP=2+SP"),
    ]),
    ("training step, fp32: PyTorch DTensor over Gloo / TP=2+SP", [
        ("EPYC, family 26", "2026-11-21-x86_64-train_step", "PyTorch DTensor / ours TP=2+SP"),
        ("Xeon, family 6", "2026-11-21-x86_64-intel-train_step", "PyTorch DTensor / ours TP=2+SP"),
        ("EPYC, family 25", "2026-11-22-x86_64-train_step", "PyTorch DTensor / ours TP=2+SP"),
    ]),
    ("Llama-3.2-1B shape, bf16: transformers, 2 threads / TP=2", [
        ("prompt of 512, Xeon", "2026-11-22-x86_64-intel-prefill", "transformers / ours TP=2"),
        ("decode, Xeon", "2026-11-22-x86_64-intel-decode", "transformers / ours TP=2"),
        ("decode, EPYC 25", "2026-11-22-x86_64-amd-decode", "transformers / ours TP=2"),
        ("load to first token, Xeon", "2026-11-22-x86_64-intel-load", "transformers / ours TP=2, first token"),
    ]),
]
TITLE = "Time of PyTorch and transformers divided by the time of shardwise"
NOTE = "time of the other / time of shardwise, 2 cores; right of 1× shardwise is faster"
WIDTH, LEFT, RIGHT, BAR, LINE, HEAD = 760, 190, 60, 14, 22, 30
MOST = 4.0


def ratio(record, row):
    """(median, lower quartile, upper quartile) of a record's row."""
    words = (RESULTS / f"{record}.md").read_text()
    match = re.search(rf"^\| {re.escape(row)} \| ([\d.]+)× \| ([\d.]+)–([\d.]+) \|", words, re.MULTILINE)
    if not match:
        sys.exit(f"figures: the record must have the row; got none named {row!r} in {record}.md")
    return tuple(map(float, match.groups()))


def x_of(value):
    return LEFT + (WIDTH - LEFT - RIGHT) * min(value, MOST) / MOST


def bar(y, name, median, low, high):
    color = "m0" if median >= 1 else "m1"
    yield text(LEFT - 8, y + BAR - 3, name, "end")
    yield f'<rect class="{color}" x="{LEFT}" y="{y}" width="{number(x_of(median) - LEFT)}" height="{BAR}"/>'
    yield f'<path class="frame" d="M{number(x_of(low))} {number(y + BAR / 2)}H{number(x_of(high))}" stroke-width="2"/>'
    yield text(x_of(max(median, high)) + 6, y + BAR - 3, f"{median:.1f}×")


class Speed:
    def __init__(self, name):
        self.name = name
        self.groups = [(title, [(case, *ratio(record, row)) for case, record, row in rows]) for title, rows in GROUPS]

    def svg(self):
        parts, y, marks = [], 8, range(math.floor(MOST) + 1)
        for title, rows in self.groups:
            parts.append(bold(LEFT, y + 14, title))
            y += HEAD - 6
            parts += [f'<path class="{"line" if i == 1 else "grid"}" d="M{number(x_of(i))} {y - 4}v{LINE * len(rows)}"/>' for i in marks]
            for row in rows:
                parts += bar(y, *row)
                y += LINE
            y += 8
        labels = [text(x_of(i), y + 8, f"{i}×", "middle") for i in marks]
        words = "; ".join(f"{title}: " + ", ".join(f"{case} {median:.1f}×" for case, median, _, _ in rows) for title, rows in self.groups)
        return document(self.name, WIDTH, y + 40, TITLE, words + ".", [*parts, *labels, text(LEFT, y + 28, NOTE, css="soft")])

    def text(self):
        lines = [TITLE, NOTE]
        for title, rows in self.groups:
            lines += ["", title, *table([["", "median", "quartiles"]] + [
                [case, f"{median:.2f}×", f"{low:.2f}–{high:.2f}"] for case, median, low, high in rows])]
        return "\n".join(lines) + "\n"


def draw(name):
    return Speed(name)

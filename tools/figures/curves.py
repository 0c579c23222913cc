"""The losses of one run under every parallel configuration, and their differences from one rank (docs/numerics.md).

`make curves` records them: under every name the losses of one run, except under "spread", which is the divergence of runs
whose weights differ in the last bit.
"""
import math

from axis import Axis, decades, linear, short, ticks
from panel import Chart, Panel, Style
from program import recorded

POINTS = 150  # maximum number of drawn points per curve
SPREAD = "last bits changed"
WIDTH = 420
COLUMNS = 8  # of a table, as fit on a line


def running_max(values):
    """Returns the maximum up to each step."""
    largest = 0
    return [largest := max(largest, value) for value in values]


def points(values, is_log=False):
    every = max(1, len(values) // POINTS)
    return [(i + 1, value) for i, value in enumerate(values) if i % every == 0 and not (is_log and value <= 0)]


class Sampled(Panel):
    """The table shows some steps only, and a few curves beside each other."""

    def table(self):
        shown = {value for value, _ in self.x.ticks} | {1}
        some = {name: [(x, y) for x, y in curve if x in shown or x - 1 in shown] for name, curve in self.curves.items()}
        names = list(some)
        for begin in range(0, len(names), COLUMNS):
            few = {name: some[name] for name in names[begin:begin + COLUMNS]}
            yield from Panel(self.title, self.x_label, self.y_label, self.x, self.y, few).table()


def draw(name):
    runs = recorded("curves.json")
    spread = runs.pop("spread")
    base = next(iter(runs.values()))
    differences = {run: running_max([abs(a - b) for a, b in zip(losses, base)]) for run, losses in runs.items()}
    curves = {run: points(values, is_log=True) for run, values in differences.items()} | {SPREAD: points(spread, is_log=True)}
    seen = [y for curve in curves.values() for _, y in curve]
    steps = Axis(0, len(base), [(step, short(step)) for step in ticks(0, len(base), 6)])
    losses = Sampled("loss of all runs", "step", "loss, nats per token", steps, linear(math.floor(min(base)), math.ceil(max(base))),
                     {run: points(values) for run, values in runs.items()}, width=WIDTH)
    distance = Sampled("running maximum of the difference from TP 1", "step", "nats per token", steps, decades(seen), curves, width=WIDTH)
    dashes = ["", "4 4"]
    styles = {run: Style(i // 2 if i else 6, dashes[i % 2], "none") for i, run in enumerate(runs)} | {SPREAD: Style(6, "1 3", "none")}
    title = "One training run under every parallel configuration"
    notes = [f"On {len(runs)} configurations the losses of {len(base)} steps differ from those of one rank by at most "
             f"{max(map(max, differences.values())):.1e}.",
             f"Changing the last bits of one rank's weights before every step moves them by {max(spread):.1e}."]
    return Chart(name, title, " ".join(notes), styles, [[losses, distance]], notes)

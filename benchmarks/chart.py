"""Log-log charts as SVG, readable on light and dark pages.

    chart.py RESULTS.json OUT.svg     redraws the results of `run.py comm`
"""

import json
import math
import sys
from html import escape

LEFT, RIGHT, TOP, GAP = 74, 16, 34, 78
WIDTH, HEIGHT = 330, 250  # of a panel's frame
LEGEND = 26
# Colors of a series on white and on black, from the palette of Okabe and Ito; its dashes and marker.
SERIES = [("#0072b2", "#56b4e9", "", "circle"), ("#0072b2", "#56b4e9", "5 4", "circle"),
          ("#0072b2", "#56b4e9", "1 3", "square"), ("#c04f00", "#ff9a4d", "", "square"),
          ("#00795a", "#2fd6a5", "", "diamond"), ("#a8477f", "#e8a0c8", "", "triangle"),
          ("#6a6a6a", "#b0b0b0", "2 3", "none")]
MARKERS = {"circle": "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", "square": "M-3 -3h6v6h-6z",
           "diamond": "M0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z", "triangle": "M0 -4l4 7h-8z", "none": ""}


def style():
    def rules(paper, ink, grid, column):
        yield f".paper{{fill:{paper}}} text{{fill:{ink}}} .frame{{stroke:{ink};fill:none}} .grid{{stroke:{grid}}}"
        for number, series in enumerate(SERIES):
            yield f".s{number}{{stroke:{series[column]};fill:none;stroke-width:2}}"
            yield f".m{number}{{fill:{series[column]}}}"

    light, dark = "\n".join(rules("#ffffff", "#1f2328", "#d8dee4", 0)), "\n".join(rules("#0d1117", "#e6edf3", "#30363d", 1))
    return f"<style>\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n</style>"


class Axis:
    """A logarithmic scale from `low` to `high` over `length` points; `ticks` are (value, label)."""

    def __init__(self, low, high, length, ticks):
        self.low, self.high, self.length, self.ticks = math.log10(low), math.log10(high), length, ticks

    def at(self, value):
        return self.length * (math.log10(value) - self.low) / (self.high - self.low)


def decades(values):
    """Returns the axis with the powers of ten around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    ticks = [(10.0**power, f"{10**power:,}" if power >= 0 else f"{10.0**power:g}") for power in range(low, high + 1)]
    return Axis(10.0**low, 10.0 ** max(high, low + 1), HEIGHT, ticks)


class Panel:
    """`curves`: series number -> [(x, y)], y above 0."""

    def __init__(self, title, x_label, y_label, x_ticks, curves):
        self.title, self.x_label, self.y_label, self.curves = title, x_label, y_label, curves
        self.x = Axis(x_ticks[0][0] / 1.5, x_ticks[-1][0] * 1.5, WIDTH, x_ticks)
        self.y = decades([y for points in curves.values() for _, y in points])

    def drawn(self, left, top):
        yield f'<g transform="translate({left} {top})">'
        yield f'<text x="0" y="-10" font-weight="bold">{escape(self.title)}</text>'
        for value, label in self.y.ticks:
            y = HEIGHT - self.y.at(value)
            yield f'<path class="grid" d="M0 {y:.1f}h{WIDTH}"/>'
            yield f'<text x="-7" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        for value, label in self.x.ticks:
            yield f'<path class="grid" d="M{self.x.at(value):.1f} 0v{HEIGHT}"/>'
            yield f'<text x="{self.x.at(value):.1f}" y="{HEIGHT + 17}" text-anchor="middle">{label}</text>'
        yield f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>'
        yield f'<text x="{WIDTH / 2}" y="{HEIGHT + 36}" text-anchor="middle">{escape(self.x_label)}</text>'
        yield f'<text transform="translate(-56 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(self.y_label)}</text>'
        for number, points in self.curves.items():
            yield from self.curve(number, points)
        yield "</g>"

    def curve(self, number, points):
        places = [(self.x.at(x), HEIGHT - self.y.at(y)) for x, y in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="s{number}" stroke-dasharray="{SERIES[number][2]}" points="{line}"/>'
        for x, y in places:
            yield marker(number, x, y)


def marker(number, x, y):
    return f'<path class="m{number}" transform="translate({x:.1f} {y:.1f})" d="{MARKERS[SERIES[number][3]]}"/>'


def legend_rows(names, width):
    """Splits the legend (series number -> name) into rows that fit."""
    rows, left = [{}], 0
    for number, name in names.items():
        left += entry_width(name)
        if left > width and rows[-1]:
            rows.append({})
            left = entry_width(name)
        rows[-1][number] = name
    return rows


def entry_width(name):
    return 54 + 7 * len(name)


def legend(names, top):
    left = LEFT
    for number, name in names.items():
        yield f'<path class="s{number}" stroke-dasharray="{SERIES[number][2]}" d="M{left} {top}h26"/>'
        yield marker(number, left + 13, top)
        yield f'<text x="{left + 32}" y="{top + 4}">{escape(name)}</text>'
        left += entry_width(name)


def svg(title, names, rows):
    """`names`: series number -> name; `rows`: lists of panels."""
    width = LEFT + max(len(row) for row in rows) * (WIDTH + LEFT + RIGHT) - LEFT + RIGHT
    legends = legend_rows(names, width - LEFT)
    first = 2 * TOP + LEGEND * (len(legends) - 1 / 2)
    height = first + len(rows) * (HEIGHT + GAP) - GAP / 3
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="12">', f"<title>{escape(title)}</title>", style(),
             '<rect class="paper" width="100%" height="100%"/>',
             f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>']
    for number, named in enumerate(legends):
        parts += legend(named, TOP + 8 + number * LEGEND)
    for number, row in enumerate(rows):
        for column, panel in enumerate(row):
            parts += panel.drawn(LEFT + column * (WIDTH + LEFT + RIGHT), first + number * (HEIGHT + GAP))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    from comm_report import drawing

    with open(sys.argv[1]) as results, open(sys.argv[2], "w") as out:
        out.write(drawing(json.load(results)))

"""Charts as SVG text: lines, stacked bars and a legend. Colors are CSS classes of the page."""
import sys
from html import escape
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "charts"))

from axis import linear  # noqa: E402

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 14, 40


def svg(body, label, height=HEIGHT):
    return (f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(body)}</svg>')


def text(x, y, words, anchor="middle", css=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'


class Axes:
    """Maps data to pixels and draws the grid."""

    def __init__(self, xs, ys):
        pad = 0.05 * (max(ys) - min(ys)) or 0.5
        self.across = linear(min(xs), max(max(xs), min(xs) + 1), 6)
        self.up = linear(min(ys) - pad, max(ys) + pad)

    def x(self, value):
        return LEFT + self.across.at(value) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return HEIGHT - BOTTOM - self.up.at(value) * (HEIGHT - TOP - BOTTOM)

    def grid(self, x_label, y_label):
        body = []
        for value, label in self.up.ticks:
            y = self.y(value)
            body += [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>',
                     text(LEFT - 8, y + 4, label, "end", "tick")]
        for value, label in self.across.ticks:
            body.append(text(self.x(value), HEIGHT - BOTTOM + 18, label, css="tick"))
        body += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, x_label, css="axis"),
                 f'<text transform="translate(14 {(HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle" '
                 f'class="axis">{escape(y_label)}</text>']
        return body


def line(axes, points, css):
    path = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    return f'<polyline points="{path}" class="line {css}"/>'


def dots(axes, points, css):
    return [f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3.5" class="dot {css}"/>' for x, y in points]


def curves(series, x_label, y_label):
    """Draws `series`, a list of (css, points, list of "line" and "dots")."""
    points = [point for _, some, _ in series for point in some]
    axes = Axes([x for x, _ in points], [y for _, y in points])
    body = axes.grid(x_label, y_label)
    for css, some, drawn in series:
        body += [line(axes, some, css)] if "line" in drawn else []
        body += dots(axes, some, css) if "dots" in drawn else []
    return svg(body, y_label)


def bars(rows, unit):
    """Draws horizontal stacked bars. `rows` is a list of (name, [(css, value)])."""
    pitch, left = 34, 118
    longest = max(sum(value for _, value in parts) for _, parts in rows)
    scale = (WIDTH - left - 96) / (longest or 1)
    body = []
    for i, (name, parts) in enumerate(rows):
        y, x = 6 + i * pitch, left
        body.append(text(left - 10, y + 17, name, "end", "tick"))
        for css, value in parts:
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{value * scale:.2f}" height="24" class="bar {css}"/>')
            if value * scale > 44:
                body.append(text(x + value * scale / 2, y + 16.5, f"{value:.1f}", css="inside"))
            x += value * scale
        body.append(text(x + 8, y + 17, f"{sum(value for _, value in parts):.1f} {unit}", "start", "total"))
    return svg(body, unit, height=12 + pitch * len(rows))


def legend(entries):
    return '<p class="legend">' + "".join(
        f'<span><i class="swatch {css}"></i>{escape(name)}</span>' for css, name in entries) + "</p>"

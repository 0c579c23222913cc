"""Charts of one or more panels with a common legend: curves and stacked columns, as SVG and as tables."""
from dataclasses import dataclass, field
from html import escape

from axis import Axis, from_zero
from page import bold, document, number, table, text, text_width

LEFT, RIGHT, TOP, GAP, LEGEND = 74, 16, 34, 78, 26
WIDTH, HEIGHT = 330, 250  # of a panel's frame
SWATCH = 32
MARKERS = {"circle": "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0", "square": "M-3 -3h6v6h-6z",
           "diamond": "M0 -4.2l4.2 4.2l-4.2 4.2l-4.2 -4.2z", "triangle": "M0 -4l4 7h-8z"}


@dataclass
class Style:
    """How a series is drawn: its color (of page.COLORS), dashes and marker."""
    color: int
    dashes: str = ""
    marker: str = "circle"
    is_joined: bool = True

    def point(self, x, y):
        if self.marker == "none":
            return ""
        return f'<path class="m{self.color}" transform="translate({number(x)} {number(y)})" d="{MARKERS[self.marker]}"/>'

    def line(self, points):
        if not self.is_joined:
            return ""
        dashes = f' stroke-dasharray="{self.dashes}"' if self.dashes else ""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        return f'<polyline class="s{self.color}" stroke-width="2"{dashes} points="{path}"/>'


def value_text(value):
    return "-" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


@dataclass
class Panel:
    """A frame with axes. `curves`: series -> [(x, y)]; `marks`: x -> words of a vertical line."""
    title: str
    x_label: str
    y_label: str
    x: Axis
    y: Axis
    curves: dict
    marks: dict = field(default_factory=dict)
    width: int = WIDTH

    def px(self, value):
        return self.width * self.x.at(value)

    def py(self, value):
        return HEIGHT * (1 - self.y.at(value))

    def frame(self):
        yield bold(0, -10, self.title)
        for value, label in self.y.ticks:
            yield f'<path class="grid" d="M0 {number(self.py(value))}h{self.width}"/>'
            yield text(-7, self.py(value) + 4, label, "end")
        yield from self.x_ticks()
        yield f'<rect class="frame" width="{self.width}" height="{HEIGHT}"/>'
        yield text(self.width / 2, HEIGHT + self.x_label_at(), self.x_label, "middle")
        yield f'<text transform="translate(-56 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(self.y_label)}</text>'

    def x_label_at(self):
        return 36

    def x_ticks(self):
        for value, label in self.x.ticks:
            yield f'<path class="grid" d="M{number(self.px(value))} 0v{HEIGHT}"/>'
            yield text(self.px(value), HEIGHT + 17, label, "middle")

    def marked(self):
        for value, words in self.marks.items():
            yield f'<path class="line" stroke-dasharray="4 3" d="M{number(self.px(value))} 0v{HEIGHT}"/>'
            yield text(self.px(value) + 5, 14, words, css="soft")

    def drawn(self, styles):
        yield from self.frame()
        yield from self.marked()
        for name, points in self.curves.items():
            places = [(self.px(x), self.py(y)) for x, y in points]
            yield styles[name].line(places)
            yield from (styles[name].point(*place) for place in places)

    def table(self):
        xs = sorted({x for points in self.curves.values() for x, _ in points})
        columns = [dict(points) for points in self.curves.values()]
        labels = dict(self.x.ticks)
        yield f"{self.title}: {self.y_label}"
        yield from table([[self.x_label, *self.curves]] + [[labels.get(x, f"{x:g}"), *(value_text(c.get(x)) for c in columns)] for x in xs])


@dataclass
class Columns(Panel):
    """Stacked columns in groups. `groups`: group -> [(name of the column, {series: value})]."""
    groups: dict = field(default_factory=dict)

    def places(self):
        """Yields (group, name, parts, left edge, width) of every column; groups are one column apart."""
        count = sum(len(columns) + 1 for columns in self.groups.values()) + 1
        pitch, at = self.width / count, 1
        for group, columns in self.groups.items():
            for name, parts in columns:
                yield group, name, parts, at * pitch, pitch
                at += 1
            at += 1

    def x_ticks(self):
        edges = {}
        for group, name, _, left, pitch in self.places():
            if name:
                yield text(left + pitch / 2, HEIGHT + 17, name, "middle")
            edges.setdefault(group, []).append(left + pitch / 2)
        for group, centers in edges.items():
            yield text((centers[0] + centers[-1]) / 2, HEIGHT + self.x_label_at() - 19, group, "middle")

    def x_label_at(self):
        return 52 if any(name for columns in self.groups.values() for name, _ in columns) else 36

    def drawn(self, styles):
        yield from self.frame()
        for _, _, parts, left, pitch in self.places():
            top = 0
            for series, value in parts.items():
                top += value
                height = HEIGHT * self.y.at(value)
                yield (f'<rect class="m{styles[series].color}" x="{number(left + 1)}" y="{number(self.py(top))}" '
                       f'width="{number(pitch - 2)}" height="{number(height)}"/>')

    def table(self):
        rows = [(f"{group} {name}".strip(), parts) for group, columns in self.groups.items() for name, parts in columns]
        series = list(dict.fromkeys(key for _, parts in rows for key in parts))
        yield f"{self.title}: {self.y_label}"
        yield from table([[self.x_label, *series, "total"]] + [
            [name, *(value_text(parts.get(key)) for key in series), value_text(sum(parts.values()))] for name, parts in rows])


def columns(title, x_label, y_label, groups, y=None, width=WIDTH):
    highest = [sum(parts.values()) for columns in groups.values() for _, parts in columns]
    return Columns(title, x_label, y_label, Axis(0, 1, []), y or from_zero(highest), {}, width=width, groups=groups)


class Chart:
    """`styles`: series -> Style, in the order of the legend; `rows`: lists of panels; `notes`: lines below."""

    def __init__(self, name, title, description, styles, rows, notes=()):
        self.name, self.title, self.description, self.notes = name, title, description, notes
        self.styles, self.rows = styles, rows
        self.width = max(sum(LEFT + panel.width + RIGHT for panel in row) for row in rows)

    def legend_rows(self):
        """Splits the legend into rows that fit."""
        lines, left = [[]], LEFT
        for series in self.styles:
            wide = SWATCH + text_width(series) + 18
            if left + wide > self.width and lines[-1]:
                lines.append([])
                left = LEFT
            lines[-1].append((left, series))
            left += wide
        return lines

    def swatch(self, left, top, series):
        style = self.styles[series]
        if self.is_columns():
            return f'<rect class="m{style.color}" x="{number(left + 10)}" y="{top - 6}" width="14" height="12"/>'
        return style.line([(left, top), (left + 26, top)]) + style.point(left + 13, top)

    def is_columns(self):
        return all(isinstance(panel, Columns) for row in self.rows for panel in row)

    def legend(self):
        for number_of_line, line in enumerate(self.legend_rows()):
            top = TOP + 12 + number_of_line * LEGEND
            for left, series in line:
                yield self.swatch(left, top, series)
                yield text(left + SWATCH, top + 4, series)

    def svg(self):
        first = 2 * TOP + 12 + LEGEND * (len(self.legend_rows()) - 1 / 2)
        below = first + len(self.rows) * (HEIGHT + GAP) - GAP / 3
        height = below + 20 * bool(self.notes) + 16 * len(self.notes)
        body = [bold(LEFT, 22, self.title), *self.legend()]
        for i, row in enumerate(self.rows):
            left = LEFT
            for panel in row:
                place = f'<g transform="translate({number(left)} {number(first + i * (HEIGHT + GAP))})">'
                body += [place, *panel.drawn(self.styles), "</g>"]
                left += panel.width + RIGHT + LEFT
        body += [text(LEFT, below + 20 + 16 * i, note, css="soft") for i, note in enumerate(self.notes)]
        return document(self.name, self.width, height, self.title, self.description, body)

    def text(self):
        tables = ["\n".join(panel.table()) for row in self.rows for panel in row]
        return "\n\n".join([self.title, *tables, *self.notes]) + "\n"

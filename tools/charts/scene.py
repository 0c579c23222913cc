"""Diagrams of boxes, arrows and words on a grid of character cells: the same drawing as SVG and as text.

A cell is COLUMN x ROW px. Borders of boxes and arrows go through the middle of cells, so boxes that share a border are drawn
alike in both. Words that leave their box, or meet other words, are an error.
"""
from page import document, number, text, text_width

COLUMN, ROW = 8, 14  # px
NORTH, EAST, SOUTH, WEST = 1, 2, 4, 8
STROKES = " ╵╶└╷│┌├╴┘─┴┐┤┬┼"  # by the directions of their lines
HEADS = {(0, 1): "▼", (0, -1): "▲", (1, 0): "▶", (-1, 0): "◀"}


def sign(value):
    return (value > 0) - (value < 0)


def px(x):
    return (x + 0.5) * COLUMN


def py(y):
    return (y + 0.5) * ROW


class Grid:
    """The text form: lines by their directions, under characters."""

    def __init__(self):
        self.lines, self.characters = {}, {}

    def line(self, x, y, to_x, to_y):
        dx, dy = sign(to_x - x), sign(to_y - y)
        forward, back = {(1, 0): (EAST, WEST), (-1, 0): (WEST, EAST), (0, 1): (SOUTH, NORTH), (0, -1): (NORTH, SOUTH)}[dx, dy]
        while (x, y) != (to_x, to_y):
            self.lines[x, y] = self.lines.get((x, y), 0) | forward
            x, y = x + dx, y + dy
            self.lines[x, y] = self.lines.get((x, y), 0) | back

    def clear(self, x, y, width, height):
        for cell in [(i, j) for i in range(x + 1, x + width - 1) for j in range(y + 1, y + height - 1)]:
            self.lines.pop(cell, None)

    def put(self, x, y, words):
        for i, character in enumerate(words, x):
            if (i, y) in self.characters:
                raise ValueError(f"figures: words must not overlap; got {words!r} at column {x} of line {y}")
            self.characters[i, y] = character

    def text(self):
        cells = {cell: STROKES[bits] for cell, bits in self.lines.items()} | self.characters
        width, height = (1 + max(cell[axis] for cell in cells) for axis in (0, 1))
        return "\n".join("".join(cells.get((x, y), " ") for x in range(width)).rstrip() for y in range(height)) + "\n"


class Scene:
    """Elements are added in cells and drawn in their order: arrows under boxes under words."""

    def __init__(self):
        self.arrows, self.boxes, self.words, self.heads = [], [], [], []
        self.grid, self.width, self.height = Grid(), 0, 0

    def extend(self, x, y):
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(self, x, y, words, anchor="start", css=""):
        """Words in line `y`: `x` is the cell of their first, middle or last character."""
        first = {"start": x, "middle": x - (len(words) - 1) // 2, "end": x - len(words) + 1}[anchor]
        self.grid.put(first, y, words)
        self.extend(first + len(words), y + 1)
        place = {"start": x * COLUMN, "middle": px(x), "end": (x + 1) * COLUMN}[anchor]
        self.words.append(text(place, py(y) + 4, words, anchor, css))

    def title(self, x, y, words):
        self.text(x, y, words)
        self.words[-1] = self.words[-1].replace("<text ", '<text font-weight="bold" ', 1)

    def box(self, x, y, width, height, lines=(), css="box"):
        """A box whose borders are in its outermost cells, with centered lines."""
        grid, right, bottom = self.grid, x + width - 1, y + height - 1
        grid.clear(x, y, width, height)
        for start, end in (((x, y), (right, y)), ((right, y), (right, bottom)), ((right, bottom), (x, bottom)), ((x, bottom), (x, y))):
            grid.line(*start, *end)
        self.extend(right + 1, bottom + 1)
        inner = (f'<rect class="{css}" x="{number(px(x))}" y="{number(py(y))}" '
                 f'width="{number((width - 1) * COLUMN)}" height="{number((height - 1) * ROW)}"/>')
        self.boxes.append("<g>" + inner + "".join(self.inside(x, y, width, height, lines)) + "</g>")

    def inside(self, x, y, width, height, lines):
        center = x + (width - 1) / 2
        first = y + (height - len(lines)) / 2
        for i, line in enumerate(lines):
            if len(line) > width - 2 or text_width(line) > (width - 1) * COLUMN - 4 or len(lines) > height - 2:
                raise ValueError(f"figures: words must fit into their box; got {line!r} in {width} x {height} cells")
            self.grid.put(int(center - (len(line) - 1) / 2 + 0.5), int(first) + i, line)
            if line:
                yield text(px(center), py(first + i) + 4, line, "middle")

    def line(self, *points, css="line"):
        """A path through cells, without a head."""
        for start, end in zip(points, points[1:]):
            self.grid.line(*start, *end)
        for point in points:
            self.extend(point[0] + 1, point[1] + 1)
        self.arrows.append(self.path([(px(x), py(y)) for x, y in points], css))

    def arrow(self, *points, css="line"):
        """A path through cells from border to border; its head is before the last one."""
        self.line(*points, css=css)
        self.arrows.pop()
        (x, y), (to_x, to_y) = points[-2:]
        dx, dy = sign(to_x - x), sign(to_y - y)
        self.grid.put(to_x - dx, to_y - dy, HEADS[dx, dy])
        self.grid.lines.pop((to_x - dx, to_y - dy), None)
        tip = px(to_x), py(to_y)
        ends = [(px(a), py(b)) for a, b in points[:-1]] + [(tip[0] - 5 * dx, tip[1] - 5 * dy)]
        self.arrows.append(self.path(ends, css) + head(tip, dx, dy, css))

    @staticmethod
    def path(points, css):
        return f'<polyline class="{css}" points="{" ".join(f"{number(x)},{number(y)}" for x, y in points)}"/>'

    def svg(self, name, title, description):
        size = (self.width + 2) * COLUMN, (self.height + 1) * ROW
        body = ['<g transform="translate(8 7)">', *self.arrows, *self.boxes, *self.words, "</g>"]
        return document(name, *size, title, description, body)


def head(tip, dx, dy, css):
    """The triangle at the end of an arrow, of the color of its line."""
    x, y = tip
    left, right = (x - 7 * dx + 3.5 * dy, y - 7 * dy - 3.5 * dx), (x - 7 * dx - 3.5 * dy, y - 7 * dy + 3.5 * dx)
    points = " ".join(f"{number(a)} {number(b)}" for a, b in (tip, left, right))
    color = "head" if css == "line" else css.replace("s", "m", 1)
    return f'<path class="{color}" d="M{points}z"/>'

"""The frame of every figure: an SVG document with its colors for light and dark pages, and the width of text.

A rule names its light color before the variable, for viewers that do not know CSS variables.
"""
from html import escape

FONT = 12  # px
# Name -> color on light and on dark pages. c0 to c6 are those of series (after Okabe and Ito), t0 to t6 their tints.
COLORS = {"paper": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9aa4af"),
          "grid": ("#d8dee4", "#30363d"),
          "c0": ("#0072b2", "#56b4e9"), "c1": ("#c04f00", "#ff9a4d"), "c2": ("#00795a", "#2fd6a5"),
          "c3": ("#a8477f", "#e8a0c8"), "c4": ("#8a6d00", "#e3c04c"), "c5": ("#5b4fb5", "#b3aaf5"),
          "c6": ("#6a6a6a", "#b0b0b0"),
          "t0": ("#d9ebf7", "#12384f"), "t1": ("#fbe3d3", "#54300f"), "t2": ("#d5f0e7", "#0d4435"),
          "t3": ("#f5dcea", "#4d2a3f"), "t4": ("#f5ebc8", "#463a0d"), "t5": ("#e4e1f6", "#322c63"),
          "t6": ("#eeeeee", "#2b3036")}
SERIES = 7
# Estimated widths in em, those of wide fonts like DejaVu Sans; other characters take OTHER.
NARROW, WIDE, OTHER = "ijlIt.,:;|!'()[]/ -f", "mwMW%@—→←", 0.65


def text_width(words, size=FONT):
    """Returns an upper estimate of the width in px."""
    return size * sum(0.41 if c in NARROW else 0.98 if c in WIDE else OTHER for c in words)


def rules():
    yield "text", "fill", "ink"
    for css, name in (("paper", "paper"), ("soft", "soft")):
        yield f".{css}", "fill", name
    for css, name in (("grid", "grid"), ("frame", "ink"), ("line", "soft")):
        yield f".{css}", "stroke", name
    yield ".head", "fill", "soft"
    yield ".box", "fill", "paper"
    yield ".box", "stroke", "soft"
    for i in range(SERIES):
        yield f".s{i}", "stroke", f"c{i}"
        yield f".m{i}", "fill", f"c{i}"
        yield f".t{i}", "fill", f"t{i}"
        yield f".t{i}", "stroke", f"c{i}"


def style():
    def variables(column):
        return "".join(f"--{name}:{pair[column]};" for name, pair in COLORS.items())

    lines = [f"svg{{{variables(0)}}}", f"@media (prefers-color-scheme: dark) {{svg{{{variables(1)}}}}}",
             ".grid,.frame,.line,polyline{fill:none}"]
    lines += [f"{selector}{{{property}:{COLORS[name][0]};{property}:var(--{name})}}" for selector, property, name in rules()]
    return "<style>\n" + "\n".join(lines) + "\n</style>"


def number(value):
    """Returns px without needless digits."""
    return f"{value:.1f}".removesuffix(".0")


def text(x, y, words, anchor="start", css="", extra=""):
    attributes = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (f' class="{css}"' if css else "") + extra
    return f'<text x="{number(x)}" y="{number(y)}"{attributes}>{escape(words)}</text>'


def bold(x, y, words, anchor="start"):
    return text(x, y, words, anchor, extra=' font-weight="bold"')


def document(name, width, height, title, description, body):
    """Returns the SVG. `name` distinguishes its ids from those of other figures on a page."""
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height)}" '
             f'viewBox="0 0 {number(width)} {number(height)}" role="img" aria-labelledby="{name}-title {name}-desc" '
             f'font-family="sans-serif" font-size="{FONT}">',
             f'<title id="{name}-title">{escape(title)}</title>',
             f'<desc id="{name}-desc">{escape(description)}</desc>', style(),
             '<rect class="paper" width="100%" height="100%"/>', *body, "</svg>", ""]
    return "\n".join(parts)


def table(rows):
    """Returns aligned lines; the first column is left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (f"{row[0]:<{widths[0]}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:]))
             for row in rows)
    return [line.rstrip() for line in lines]

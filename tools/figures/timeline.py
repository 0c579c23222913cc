"""A measured step: what each rank did when, in lanes of computing, communicating and waiting."""
from axis import ticks
from page import bold, document, number, table, text, text_width
from program import recorded

COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "share_shard"}
LANES = {"compute": 0, "communication": 1, "waiting": 6}  # their colors
WIDTH, LEFT, TOP, LANE, GAP = 860, 130, 62, 20, 16
THINNEST = 0.8  # px of the shortest span
CELLS = 100  # of a lane in the text form
SHADES = " ░▒▓█"


def spans(rank):
    """Yields (lane, part, start, end) in µs. The trace has only the sum of an event's waits: they are put at its start."""
    for operation, part, start, duration, waiting in rank["events"]:
        lane = "communication" if operation in COLLECTIVES else "compute"
        if waiting > 0:
            yield "waiting", part, start, start + waiting
        yield lane, part, start + waiting, start + duration


def joined(rank, lane, gap):
    """Returns the spans of a lane; those less than `gap` apart are one."""
    found = []
    for name, _, start, end in spans(rank):
        if name != lane:
            continue
        if found and start - found[-1][1] < gap:
            found[-1][1] = end
        else:
            found.append([start, end])
    return found


def parts(rank):
    """Returns [part, start, end] of the runs of events of one part of the model."""
    runs = []
    for _, part, start, end in spans(rank):
        if runs and runs[-1][0] == part:
            runs[-1][2] = end
        else:
            runs.append([part, start, end])
    return runs


class Timeline:
    def __init__(self, name):
        self.name, self.found = name, recorded("timeline.json")
        self.ranks = self.found["ranks"]
        self.end = max(rank["start"] + rank["duration"] for rank in self.ranks)
        self.title = f"One training step of {len(self.ranks)} ranks, measured"

    def x(self, us):
        return LEFT + (WIDTH - LEFT - 14) * us / self.end

    def sums(self):
        """Rows of a table: what each rank's step is made of, in ms; the host's is what no event covers."""
        yield ["ms", *LANES, "host", "step"]
        for i, rank in enumerate(self.ranks):
            taken = [sum(end - start for name, _, start, end in spans(rank) if name == lane) for lane in LANES]
            rest = rank["duration"] - sum(taken)
            yield [f"rank {i}", *(f"{us / 1e3:.1f}" for us in (*taken, rest, rank["duration"]))]

    def notes(self):
        return [f"{self.found['command']}",
                f"{self.found['cpu']}, {self.found['date']}, beside other work on the same cores: a rank that another program interrupts makes its peer wait.",
                "The trace has one sum of waits for each operation; they are drawn at its start."]

    def strip(self):
        """The parts of the model that rank 0 works on."""
        y = TOP - 26
        for i, (part, start, end) in enumerate(parts(self.ranks[0])):
            left, width = self.x(start), self.x(end) - self.x(start)
            yield f'<rect class="t{6 if i % 2 else 0}" x="{number(left)}" y="{y}" width="{number(width)}" height="18"/>'
            if text_width(part) + 4 < width:
                yield text(left + width / 2, y + 13, part, "middle")
        yield text(LEFT - 8, y + 13, "part, rank 0", "end", "soft")

    def lane(self, rank, lane, y):
        px = (WIDTH - LEFT - 14) / self.end
        yield text(LEFT - 8, y + LANE - 6, lane, "end")
        yield f'<path class="grid" d="M{LEFT} {y + LANE}H{WIDTH - 14}"/>'
        widths = [(self.x(start), max((end - start) * px, THINNEST)) for start, end in joined(rank, lane, 0.3 / px)]
        path = "".join(f"M{left:.2f} {y + 2}h{width:.2f}v{LANE - 3}h{-width:.2f}z" for left, width in widths)
        yield f'<path class="m{LANES[lane]}" d="{path}"/>'

    def body(self):
        yield bold(8, 22, self.title)
        yield from self.strip()
        y = TOP
        for i, rank in enumerate(self.ranks):
            yield bold(8, y + LANE - 6, f"rank {i}")
            for lane in LANES:
                yield from self.lane(rank, lane, y)
                y += LANE
            y += GAP
        for ms in ticks(0, self.end / 1e3, 8):
            yield f'<path class="line" d="M{number(self.x(ms * 1e3))} {y - GAP}v5"/>'
            yield text(self.x(ms * 1e3), y + 5, f"{ms:g}", "middle")
        yield text(LEFT - 8, y + 5, "ms", "end")
        yield from self.below(y + 34)

    def below(self, y):
        for row in self.sums():
            yield text(8, y, row[0])
            for i, cell in enumerate(row[1:]):
                yield text(LEFT + 60 + 105 * i, y, cell, "end")
            y += 16
        for note in self.notes():
            y += 16
            yield text(8, y, note, css="soft")

    def height(self):
        lanes = len(self.ranks) * (len(LANES) * LANE + GAP)
        return TOP + lanes + 34 + 16 * (len(self.ranks) + 1 + len(self.notes())) + 14

    def description(self):
        rows = list(self.sums())
        words = ("; ".join(f"{row[0]}: " + ", ".join(f"{name} {cell} ms" for name, cell in zip(rows[0][1:], row[1:])) for row in rows[1:]))
        return f"Lanes of computing, communicating and waiting of each rank over one step. {words}."

    def svg(self):
        return document(self.name, WIDTH, self.height(), self.title, self.description(), self.body())

    def text_lane(self, rank, lane):
        """A character shows how much of its time the rank spends in the lane."""
        cell = self.end / CELLS
        busy = [0.0] * CELLS
        for name, _, start, end in spans(rank):
            for i in range(int(start / cell), min(int(end / cell), CELLS - 1) + 1):
                busy[i] += (name == lane) * max(0, min(end, (i + 1) * cell) - max(start, i * cell))
        return "".join(SHADES[min(4, round(4 * share / cell + 0.3))] for share in busy)

    def text(self):
        lines = [self.title, ""]
        for i, rank in enumerate(self.ranks):
            lines += [f"rank {i}  {lane:<14}|{self.text_lane(rank, lane)}|" for lane in LANES] + [""]
        lines += [f"{'':<22}0{self.end / 1e3:>{CELLS - 3}.0f} ms", "", *table(list(self.sums())), "", *self.notes()]
        return "\n".join(lines) + "\n"


def draw(name):
    return Timeline(name)

"""Dataflow of a block with its collectives and their bytes, forward and backward, under TP and under TP+SP."""
from diagram import Diagram
from program import Shapes, bytes_text, size_text
from scene import Scene

MODEL, RANKS, TOKENS = "llama-3.1-8b", 8, 4096
WIDTH, PITCH, GAP, SIDE = 54, 4, 12, 27  # of a column's boxes, their distance, between the columns, of a side box
COMM, WORK, STREAM = "t1", "t0", "box"


class Passes:
    """The rows of the picture: (kind, forward, backward, side box of backward), from the block's input to its output."""

    def __init__(self, shapes, sequence_parallel):
        self.shapes, self.sp = shapes, sequence_parallel
        self.drawn = {}  # (backward, collective) -> calls in the picture

    def stream(self):
        sizes = self.shapes.local("residual stream") if self.sp else self.shapes.shape("residual stream")
        return size_text(sizes)

    def full(self):
        return size_text(self.shapes.shape("residual stream"))

    def call(self, backward, collective, what):
        """The words of a collective's box; counts it."""
        self.drawn[backward, collective] = self.drawn.get((backward, collective), 0) + 1
        _, sent = self.shapes.calls(self.sp, backward, collective)
        return f"{collective} of {what}: {bytes_text(sent)}"

    def entry(self):
        if self.sp:
            return "entry", self.call(False, "all_gather", "X"), self.call(True, "reduce_scatter", "dX")
        return "entry", None, self.call(True, "all_reduce", "dX")

    def exit(self):
        if self.sp:
            return "exit", self.call(False, "reduce_scatter", "Y"), self.call(True, "all_gather", "dY")
        return "exit", self.call(False, "all_reduce", "Y"), None

    def product(self, weight, read, written, is_column):
        name = f"{weight} {size_text(self.shapes.local(weight))}"
        side = self.call(True, "all_gather", "X") if self.sp and is_column else None
        return "work", f"{name} → {written}", f"{weight}: dX, dW" if side else f"{weight}: dX {read}, dW", side

    def half(self, norm, column, middle, row, inner, row_input, gradient):
        """The rows of attention or of the MLP."""
        full = self.full()
        yield "work", f"{norm} {self.stream()}", f"{norm}: dX, dW{' (partial)' if self.sp else ''}"
        yield self.entry()
        yield self.product(column, full, size_text(inner), is_column=True)
        yield "work", f"{middle} → {size_text(row_input)}", f"{middle}: backward"
        yield self.product(row, size_text(row_input), f"partial {full}", is_column=False)
        yield self.exit()
        yield "add", "residual sum", gradient

    def rows(self):
        local = self.shapes.local
        yield "stream", f"residual stream {self.stream()}", f"sum of both gradients {self.stream()}"
        yield from self.half("norm 1", "qkv_proj", "attention", "o_proj", local("q|k|v"), local("attention output"),
                             "sum of both gradients, to both branches")
        yield from self.half("norm 2", "gate_up_proj", "SwiGLU", "down_proj", self.gate_up(), local("down_proj input"),
                             "gradient, to both branches")
        yield "stream", f"residual stream {self.stream()}", f"gradient {self.stream()}"

    def gate_up(self):
        """The sizes of the rank's gate and up, which are rows of one weight."""
        return [*self.shapes.shape("down_proj input")[:2], self.shapes.local("gate_up_proj")[0]]

    def check(self):
        for backward in (False, True):
            for collective in ("all_reduce", "all_gather", "reduce_scatter"):
                planned, _ = self.shapes.calls(self.sp, backward, collective)
                drawn = self.drawn.get((backward, collective), 0)
                assert planned == drawn, f"the plan has {planned} {collective}, the picture {drawn}"


class Column:
    """One pass: boxes from top to bottom, arrows down (forward) or up, and the residual branch beside them."""

    def __init__(self, scene, x, top, is_backward):
        self.scene, self.x, self.top, self.is_backward = scene, x, top, is_backward

    def y(self, row):
        return self.top + PITCH * row

    def box(self, row, kind, words, side):
        css = {"entry": COMM, "exit": COMM, "work": WORK}.get(kind, STREAM)
        width = WIDTH - SIDE - 4 if side else WIDTH
        self.scene.box(self.x, self.y(row), width, 3, [words], css)
        if side:
            left = self.x + WIDTH - SIDE
            self.scene.box(left, self.y(row), SIDE, 3, [side], COMM)
            self.scene.arrow((left, self.y(row) + 1), (self.x + width - 1, self.y(row) + 1))

    def connect(self, row, below):
        x = self.x + 10
        ends = (x, self.y(row) + 2), (x, self.y(below))
        self.scene.arrow(*ends[::-1] if self.is_backward else ends)

    def branch(self, start, end, is_left):
        """The residual connection, from the stream before a norm to the sum."""
        edge, side = (self.x, self.x - 4) if is_left else (self.x + WIDTH - 1, self.x + WIDTH + 3)
        points = [(edge, self.y(start) + 1), (side, self.y(start) + 1), (side, self.y(end) + 1), (edge, self.y(end) + 1)]
        self.scene.arrow(*points[::-1] if self.is_backward else points)

    def draw(self, rows):
        drawn = [(i, row) for i, row in enumerate(rows) if row[1]]
        for i, (kind, words, *side) in drawn:
            self.box(i, kind, words, side[0] if side else None)
        for (above, _), (below, _) in zip(drawn, drawn[1:]):
            self.connect(above, below)
        starts = [i for i, row in enumerate(rows) if row[0] in ("stream", "add")]
        for i, (start, end) in enumerate(zip(starts, starts[1:-1])):
            self.branch(start, end, is_left=i == 0)


def draw(name, sequence_parallel):
    shapes, scene = Shapes(MODEL, RANKS, TOKENS), Scene()
    passes = Passes(shapes, sequence_parallel)
    rows = list(passes.rows())
    passes.check()
    mode = "TP+SP" if sequence_parallel else "TP"
    scene.title(0, 0, f"A block of {MODEL} under {mode} on {RANKS} ranks, {TOKENS} tokens in bf16: sizes and bytes of rank 0")
    scene.text(0, 1, note(sequence_parallel), css="soft")
    scene.title(5, 3, "forward, downwards")
    scene.title(5 + WIDTH + GAP, 3, "backward, upwards")
    Column(scene, 5, 4, False).draw([(row[0], row[1]) for row in rows])
    Column(scene, 5 + WIDTH + GAP, 4, True).draw([(row[0], *row[2:]) for row in rows])
    return Diagram(name, f"Dataflow of a block under {mode}", description(passes, mode), scene)


def note(sequence_parallel):
    if sequence_parallel:
        return "Orange: collectives; bytes are those that a rank sends. Backward gathers X again, for dW."
    return "Orange: collectives; bytes are those that a rank sends. f is nothing in forward, f* nothing in backward."


def description(passes, mode):
    def listed(backward):
        return ", ".join(f"{calls} {collective} of {bytes_text(passes.shapes.calls(passes.sp, backward, collective)[1])}"
                         for (is_backward, collective), calls in passes.drawn.items() if is_backward == backward)

    return (f"Under {mode} a block calls {listed(False)} in forward and {listed(True)} in backward. The residual stream is "
            f"{passes.stream()} on a rank; products with qkv_proj and gate_up_proj have sharded outputs, those with o_proj and "
            "down_proj partial sums.")


def draw_tp(name):
    return draw(name, sequence_parallel=False)


def draw_tp_sp(name):
    return draw(name, sequence_parallel=True)

"""Which rank holds which rows and columns of the weights of a block."""
from diagram import Diagram
from program import Shapes, range_text, size_text
from scene import Scene

MODEL, RANKS, TOKENS = "llama-3.1-8b", 4, 4096
ROW_WIDTH, COLUMN_WIDTH, COLUMN_HEIGHT = 34, 15, 9


def rows_of(scene, x, y, shapes, name, parts):
    """Draws a weight whose rows are sharded: the ranges from top to bottom, beside the names of the fused parts."""
    scene.title(x, y, f"{name} {size_text(shapes.shape(name))}")
    scene.text(x, y + 1, "column parallel: rows of the stored weight")
    ranges = sorted((begin, end, rank) for rank in range(RANKS) for begin, end in shapes.ranges(name, rank))
    for i, (begin, end, rank) in enumerate(ranges):
        if i % RANKS == 0:
            scene.text(x, y + 4 + 2 * i, parts[i // RANKS])
        scene.box(x + 5, y + 3 + 2 * i, ROW_WIDTH, 3, [f"rank {rank}: rows {begin}:{end}"], f"t{rank}")
    return y + 4 + 2 * len(ranges)


def columns_of(scene, x, y, shapes, name):
    """Draws a weight whose columns are sharded: a strip of columns for each rank."""
    scene.title(x, y, f"{name} {size_text(shapes.shape(name))}")
    scene.text(x, y + 1, "row parallel: columns of the stored weight")
    for rank in range(RANKS):
        lines = [f"rank {rank}", "columns", range_text(shapes.ranges(name, rank))]
        scene.box(x + rank * (COLUMN_WIDTH - 1), y + 3, COLUMN_WIDTH, COLUMN_HEIGHT, lines, f"t{rank}")


def draw(name):
    shapes, scene = Shapes(MODEL, RANKS, TOKENS), Scene()
    scene.title(0, 0, f"Weights of a block of {MODEL} on {RANKS} ranks")
    scene.text(0, 1, "Weights are stored as [out, in]; heights and widths are not to scale.", css="soft")
    right = 5 + ROW_WIDTH + 6
    below = rows_of(scene, 0, 3, shapes, "qkv_proj", ["q", "k", "v"])
    columns_of(scene, right, 3, shapes, "o_proj")
    columns_of(scene, right, below + 2, shapes, "down_proj")
    below = rows_of(scene, 0, below + 2, shapes, "gate_up_proj", ["gate", "up"])
    norms = shapes.shape("input_layernorm")
    scene.text(0, below + 1, f"Both norms {size_text(norms)} are replicated: every rank holds all of them.")
    return Diagram(name, "Which rank holds which rows and columns", description(shapes), scene)


def description(shapes):
    return (f"The four weights of a block of {MODEL} on {RANKS} ranks. The rows of qkv_proj and gate_up_proj, and the columns of "
            f"o_proj and down_proj, are divided: rank 0 holds rows {range_text(shapes.ranges('qkv_proj', 0))} of qkv_proj and "
            f"columns {range_text(shapes.ranges('o_proj', 0))} of o_proj.")

"""Forward and backward of a column-parallel and a row-parallel product on two ranks."""
from diagram import Diagram
from program import Shapes, bytes_text, range_text, size_text
from scene import Scene

MODEL, RANKS, TOKENS = "gpt2", 2, 1024
SUBSCRIPT = "₀₁"
# Left edges and widths of the five boxes of a pass.
PLACES = [(0, 18), (21, 25), (49, 25), (77, 18), (98, 18)]
LANE, HEIGHT = 7, 5  # lines from rank to rank, and of a box


def boxes(scene, y, lanes, direction):
    """Draws the boxes of both ranks, those of `direction` 1 from left to right; arrows connect neighbors."""
    for rank, lane in enumerate(lanes):
        top = y + rank * LANE
        for (x, width), lines in zip(PLACES, lane):
            if lines is not None:
                scene.box(x, top, width, HEIGHT, lines, f"t{2 * rank}")
        middle = top + HEIGHT // 2
        for (left, width), (right, _) in zip(PLACES, PLACES[1:]):
            ends = (left + width - 1, middle), (right, middle)
            scene.arrow(*ends[::direction])


def collective(scene, y, place, lines):
    x, width = PLACES[place]
    scene.box(x, y, width, LANE + HEIGHT, lines, "t1")


def forward(shapes, rank):
    i = SUBSCRIPT[rank]
    a, b = (range_text(shapes.ranges(name, rank)) for name in ("up_proj", "down_proj"))
    hidden = size_text(shapes.shape("residual stream"))
    return [["X", hidden, "on every rank"],
            [f"U{i} = X A{i}", f"columns {a} of A", size_text(shapes.local("down_proj input", rank))],
            [f"φ(U{i}) B{i}", f"rows {b} of B", "partial sum of Z"], None, ["Z", hidden, "on every rank"]]


def backward(shapes, rank):
    i = SUBSCRIPT[rank]
    hidden, inner = size_text(shapes.shape("residual stream")), size_text(shapes.local("down_proj input", rank))
    return [["dX", hidden, "on every rank"], None,
            [f"dU{i} A{i}ᵀ", "partial sum of dX", f"dA{i} = Xᵀ dU{i}"],
            [f"dU{i} =", f"dZ B{i}ᵀ ∘ φ′(U{i})", inner], ["dZ", hidden, f"dB{i} = φ(U{i})ᵀ dZ"]]


def draw(name):
    shapes, scene = Shapes(MODEL, RANKS, TOKENS), Scene()
    calls, sent = shapes.calls(False, False, "all_reduce")
    assert (calls, sent) == shapes.calls(False, True, "all_reduce") and calls == 2, "a block has two pairs, with one call each way"
    scene.title(0, 0, f"A column-parallel product, then a row-parallel one: Z = φ(X A) B, the MLP of {MODEL} on two ranks")
    scene.text(0, 2, "forward: rank 0 above, rank 1 below; biases are left out")
    boxes(scene, 3, [forward(shapes, rank) for rank in range(RANKS)], 1)
    collective(scene, 3, 3, ["all_reduce (f*)", "Z = Σ of both", f"{bytes_text(sent)} sent", "by each rank"])
    scene.text(0, 17, "backward: weight gradients dA and dB are local")
    boxes(scene, 18, [backward(shapes, rank) for rank in range(RANKS)], -1)
    collective(scene, 18, 1, ["all_reduce (f)", "dX = Σ of both", f"{bytes_text(sent)} sent", "by each rank"])
    return Diagram(name, "Column then row: one collective each way", description(sent), scene)


def description(sent):
    return ("Forward: both ranks have X and multiply it by their columns of A, apply φ, multiply by their rows of B, and an all_reduce "
            "adds the two partial sums to Z. Backward runs from dZ to dX with one all_reduce of the input gradient; the gradients of "
            f"the weights are local. Each all_reduce sends {bytes_text(sent)} a rank.")

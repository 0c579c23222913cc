"""Data, pipeline and tensor parallelism side by side: what each of four ranks holds, sends and waits for."""
from diagram import Diagram
from program import Shapes, bytes_text, one_plan
from scene import Scene

MODEL, RANKS, TOKENS, BATCH = "llama-3.2-1b", 4, 4096, 4
PITCH, WIDTH = 48, 41  # columns from axis to axis, and of the model
TOP, PART = 5, 4  # first line of the pictures; lines of a rank's part


def plan(**degrees):
    """Returns the plan with these degrees, one sequence a micro-batch."""
    flags = {"tp": 1, "pp": 1, "dp": 1} | degrees
    return one_plan({"sequence_parallel": False, "chunks": 1}, model=MODEL, ranks=RANKS, batch_size=BATCH, micro_batch_size=1, zero=0,
                    recompute="none", seq_len=TOKENS, **flags)


def data_parallel(scene, x):
    """Every rank has the whole model and its own sequences."""
    for rank in range(RANKS):
        scene.box(x, TOP + PART * rank, WIDTH, PART, [f"rank {rank}: the whole model,", f"sequence {rank} of {BATCH}"], f"t{rank}")


def pipeline_parallel(scene, x, blocks):
    """Every rank has some of the blocks."""
    each = blocks // RANKS
    assert each * RANKS == blocks
    for rank in range(RANKS):
        ends = {0: " and embedding", RANKS - 1: " and head"}.get(rank, "")
        scene.box(x, TOP + PART * rank, WIDTH, PART, [f"rank {rank}: blocks {rank * each}:{(rank + 1) * each}{ends},", "every sequence"], f"t{rank}")


def tensor_parallel(scene, x):
    """Every rank has a part of each block."""
    width = (WIDTH - 1) // RANKS
    for rank in range(RANKS):
        lines = ["rank", str(rank), "", "1/" + str(RANKS), "of each", "weight", "", "every", "seq."]
        scene.box(x + rank * width, TOP, width + 1, PART * RANKS, lines, f"t{rank}")


def held(found):
    memory = found["plan"]["memory_bytes"]
    states = memory["weights"] + memory["gradients"] + memory["optimizer"]
    return [f"weights, gradients, AdamW: {bytes_text(states)}", f"saved activations: {bytes_text(memory['activations'])}"]


def exposed(found):
    """What a step waits for."""
    s = found["plan"]["seconds"]
    names = {"data_parallel": "gradients", "pipeline": "messages", "bubble": "bubble", "tensor_parallel": "collectives"}
    waits = [f"{name} {s[key] * 1e3:.1f}" for key, name in names.items() if s[key] > 0] or ["none"]
    return [f"step: {s['total'] * 1e3:.1f} ms on {found['machine']},", f"waits, ms: {', '.join(waits)}"]


def sends(shapes, data):
    """What a rank sends under each axis: of formulas in docs/algorithms.md, with planned sizes."""
    gradients = data["plan"]["memory_bytes"]["gradients"]
    tokens, batch, hidden = shapes.shape("residual stream")
    boundary = tokens * batch * hidden * data["element_bytes"]
    calls, each = shapes.calls(False, False, "all_reduce")
    backward, _ = shapes.calls(False, True, "all_reduce")
    return [["sends: its gradients, in fp32,", f"once a step: {bytes_text(2 * gradients * (RANKS - 1) // RANKS)}"],
            ["sends: the residual stream to the next", f"stage, and its gradient back: {bytes_text(boundary)}"],
            [f"sends: {calls + backward} all_reduces a block and", f"sequence, each {bytes_text(each)}"]]


def draw(name):
    shapes, scene = Shapes(MODEL, RANKS, TOKENS), Scene()
    data, pipeline, tensor = plan(dp=RANKS), plan(pp=RANKS), plan(tp=RANKS)
    scene.title(0, 0, f"Three axes: {MODEL} on {RANKS} ranks, {BATCH} sequences of {TOKENS} tokens, bf16, by plan")
    titles = ["data parallel (DP)", f"pipeline parallel (PP), stage {pipeline['plan']['peak_stage']}", "tensor parallel (TP)"]
    for i, (title, found, sent) in enumerate(zip(titles, (data, pipeline, tensor), sends(shapes, data))):
        scene.title(PITCH * i, 3, title)
        for j, line in enumerate([*held(found), *sent, *exposed(found)]):
            scene.text(PITCH * i, TOP + PART * RANKS + 1 + j + j // 2, line)
    data_parallel(scene, 0)
    pipeline_parallel(scene, PITCH, pipeline["layers"])
    tensor_parallel(scene, 2 * PITCH)
    return Diagram(name, "Data, pipeline and tensor parallelism", description(data, pipeline, tensor), scene)


def description(*plans):
    words = [f"{axis}: {held(found)[0]}, {held(found)[1]}; {' '.join(exposed(found))}" for axis, found in zip(("DP", "PP", "TP"), plans)]
    return f"What each of {RANKS} ranks holds, sends and waits for. {'. '.join(words)}."

"""Planned memory of a rank over the number of ranks, by class, under TP, TP+SP and recomputation."""
from panel import Chart, Style, columns
from program import one_plan

MODEL, TOKENS, RANKS = "llama-3.1-8b", 8192, [1, 2, 4, 8, 16, 32]
MODES = {"TP": (False, "none"), "TP+SP": (True, "none"), "TP+SP, selective": (True, "selective"), "TP+SP, full": (True, "full")}
CLASSES = {"weights": Style(0), "gradients": Style(4), "optimizer": Style(5), "activations": Style(1), "buffers": Style(2)}
NO_LIMIT = 900000  # GB: plans that fit on no device are drawn as well


def bytes_of(ranks, sequence_parallel, recompute):
    """Returns class -> bytes of a rank."""
    degrees = {"sequence_parallel": sequence_parallel and ranks > 1, "recompute": recompute}
    found = one_plan(degrees, model=MODEL, ranks=ranks, tp=ranks, pp=1, dp=1, zero=0, batch_size=1, micro_batch_size=1,
                     seq_len=TOKENS, memory_cap=NO_LIMIT)
    return found["plan"]["memory_bytes"]


def draw(name):
    groups = {mode: [(str(ranks), {kind: bytes_of(ranks, *choice)[kind] / 1e9 for kind in CLASSES}) for ranks in RANKS]
              for mode, choice in MODES.items()}
    panel = columns("peak of a training step", "ranks, and mode", "memory of a rank, GB", groups, width=760)
    title = f"Planned memory of a rank: {MODEL}, bf16, one sequence of {TOKENS} tokens"
    totals = {mode: [sum(parts.values()) for _, parts in stacks] for mode, stacks in groups.items()}
    words = "; ".join(f"{mode}: " + ", ".join(f"{total:.1f}" for total in found) for mode, found in totals.items())
    notes = ["selective: recomputes activations in backward; full: whole blocks."]
    return Chart(name, title, f"GB of a rank on {', '.join(map(str, RANKS))} ranks. {words}.", CLASSES, [[panel]], notes)

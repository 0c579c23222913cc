"""By model: communication over computation against ranks and hidden size, and throughput against the degree of TP."""
import json
import tempfile
from pathlib import Path

from axis import doubling, from_zero
from panel import Chart, Panel, Style
from program import one_plan

HIDDEN, RANKS, TOKENS = [1024, 2048, 4096, 8192], [2, 4, 8], 2048
HEAD_DIM, LAYERS, VOCABULARY = 128, 8, 1024  # few layers: the ratio is that of a block; a small vocabulary, so that the head matters little
MODEL, DEGREES, LONG, MACHINES = "llama-3.1-70b", [1, 2, 4, 8, 16, 32, 64], 8192, ["h100", "p4d"]
NO_LIMIT = 900000  # GB


def config(hidden):
    """A Llama with an MLP of 4 times the hidden size and no grouped heads."""
    heads = hidden // HEAD_DIM
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": 4 * hidden,
            "num_hidden_layers": LAYERS, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": VOCABULARY,
            "max_position_embeddings": TOKENS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu"}


def plan(model, tp, machine="h100", **more):
    found = one_plan({"sequence_parallel": False}, model=model, machine=machine, ranks=tp, tp=tp, pp=1, dp=1, zero=0, batch_size=1,
                     micro_batch_size=1, recompute="none", memory_cap=NO_LIMIT, **more)
    return found["plan"] | {"devices_per_node": found["devices_per_node"]}


def ratios():
    """Returns series -> [(ranks, ratio)]."""
    curves = {}
    with tempfile.TemporaryDirectory() as scratch:
        for hidden in HIDDEN:
            path = Path(scratch) / f"{hidden}.json"
            path.write_text(json.dumps(config(hidden)))
            seconds = [plan(path, ranks, seq_len=TOKENS)["seconds"] for ranks in RANKS]
            curves[f"hidden size {hidden}"] = [(ranks, s["tensor_parallel"] / s["compute"]) for ranks, s in zip(RANKS, seconds)]
    return curves


def throughputs():
    """Returns machine -> [(degree, tokens per second and device)]."""
    return {machine: [(tp, plan(MODEL, tp, machine, seq_len=LONG)["tokens_per_second"] / tp) for tp in DEGREES]
            for machine in MACHINES}


def draw(name):
    by_ranks, by_degree = ratios(), throughputs()
    per_node = plan(MODEL, 1, seq_len=LONG)["devices_per_node"]
    styles = {series: Style(i, marker=marker) for i, (series, marker) in
              enumerate(zip([*by_ranks, *by_degree], ["circle", "square", "diamond", "triangle", "circle", "square"]))}
    left = Panel("time of TP's collectives / of computation", "ranks (h100)", "ratio in a training step", doubling(RANKS),
                 from_zero([y for points in by_ranks.values() for _, y in points]), by_ranks)
    right = Panel(f"throughput of a device, {MODEL}", "degree of TP", "tokens per second and device", doubling(DEGREES),
                  from_zero([y for points in by_degree.values() for _, y in points]), by_degree, {per_node: "one node"})
    notes = ["By model (shardwise plan), not measured: bf16, TP without SP, one sequence of "
             f"{TOKENS} tokens (left) and {LONG} (right);",
             f"memory is not limited. A node has {per_node} devices, which share the network of p4d, and have a port each in h100."]
    last = {series: points[-1][1] for series, points in by_ranks.items()}
    words = ", ".join(f"{series}: {value:.2f}" for series, value in last.items())
    return Chart(name, "What tensor parallelism costs, by model", f"The ratio grows with ranks and falls with the hidden size; on {RANKS[-1]} "
                 f"ranks {words}. Throughput of a device falls with the degree, and more beyond a node.", styles, [[left, right]], notes)

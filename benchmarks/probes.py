"""What both cores of this machine reach, measured before and after a benchmark: neighbors of a shared machine change it."""

import json
import subprocess

from machine import BUILD

# A weight whose copies exceed the caches, in the formats whose arithmetic differs.
COMMAND = ["bench", "products", "--tp", "2", "--weights", "gate_up_proj", "--formats", "fp32,bf16", "--rows", "1", "--seconds", "1"]


def of_document(document):
    """Returns the rates in bench products' JSON document as text."""
    ranks, weights = document["tp"], document["weights"]
    read = ranks * weights[0]["bytes"] / weights[0]["read"]["median_us"] / 1e3
    arithmetic = [f"{ranks * weight['arithmetic_operations'] / weight['arithmetic']['median_us'] / 1e3:.0f} GFLOP/s by "
                  f"{weight['instruction']}" for weight in weights]
    return f"reading {read:.1f} GB/s; {'; '.join(arithmetic)}"


def measure():
    output = subprocess.run([str(BUILD / "shardwise"), *COMMAND, "--json"], check=True, stdout=subprocess.PIPE).stdout
    return of_document(json.loads(output))

"""transformers' side of the load benchmark.

    load_peer.py make DIRECTORY SHAPE.json   writes a bf16 checkpoint of this shape with random weights
    load_peer.py load DIRECTORY              loads it, predicts one token, and prints the seconds of both as JSON
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

from generation_peer import make_model


def load(directory):
    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    loaded = time.perf_counter() - begin
    with torch.inference_mode():
        model(input_ids=torch.tensor([[7]]), logits_to_keep=1)
    print(json.dumps({"load": loaded, "first_token": time.perf_counter() - begin}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make_model(sys.argv[3], torch.bfloat16).save_pretrained(sys.argv[2])
    else:
        load(sys.argv[2])

"""transformers' side of the generation benchmark, with the protocol of worker.h.

    generation_peer.py decode|prefill bf16|fp32 SHAPE.json
"""

import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT, PROMPT, MOST = 32, 512, 1024


def make_model(shape, dtype):
    torch.manual_seed(1)
    return LlamaForCausalLM._from_config(LlamaConfig.from_json_file(shape), dtype=dtype).eval()


class Text:
    def __init__(self, model):
        self.model = model
        self.token = torch.tensor([[7]])
        self.restart(CONTEXT)

    def restart(self, length):
        self.cache = None
        self.read(self.token.expand(1, length))

    def read(self, ids):
        if self.cache is not None and self.cache.get_seq_length() + ids.shape[1] > MOST:
            self.cache.crop(CONTEXT)
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        self.token = out.logits[:, -1:].argmax(-1)


def main():
    what, dtype, shape = sys.argv[1:]
    with torch.inference_mode():
        text = Text(make_model(shape, torch.bfloat16 if dtype == "bf16" else torch.float32))
        step = (lambda: text.read(text.token)) if what == "decode" else (lambda: text.restart(PROMPT))
        for line in sys.stdin:
            begin = time.perf_counter()
            for _ in range(int(line)):
                step()
            print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()

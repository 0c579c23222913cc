"""transformers' side of the generation benchmark, with the protocol of worker.h.

    generation_peer.py decode|prefill [bf16|fp32]
"""

import json
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT, PROMPT, MOST = 32, 512, 1024


def make_model(dtype):
    config = LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                         num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=4096,
                         rope_theta=500000.0, tie_word_embeddings=True)
    torch.manual_seed(1)
    return LlamaForCausalLM._from_config(config, dtype=dtype).eval()


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
    what, dtype = sys.argv[1], torch.bfloat16 if sys.argv[2] == "bf16" else torch.float32
    with torch.inference_mode():
        text = Text(make_model(dtype))
        step = (lambda: text.read(text.token)) if what == "decode" else (lambda: text.restart(PROMPT))
        for line in sys.stdin:
            begin = time.perf_counter()
            for _ in range(int(line)):
                step()
            print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()

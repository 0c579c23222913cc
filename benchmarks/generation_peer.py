"""transformers' side of the generation benchmark, with the protocol of worker.h.

    generation_peer.py decode|prefill bf16|fp32 SHAPE.json
"""

import generation_worker
import torch
from generation_worker import CONTEXT, MOST
from transformers import LlamaConfig, LlamaForCausalLM


def make_model(shape, dtype):
    torch.manual_seed(1)
    return LlamaForCausalLM._from_config(LlamaConfig.from_json_file(shape), dtype=dtype).eval()


class Text:
    def __init__(self, dtype, shape):
        self.model = make_model(shape, torch.bfloat16 if dtype == "bf16" else torch.float32)
        self.token = torch.tensor([[7]])
        self.restart(CONTEXT)

    def decode(self):
        self.read(self.token)

    def restart(self, length):
        self.cache = None
        self.read(self.token.expand(1, length))

    def read(self, ids):
        if self.cache is not None and self.cache.get_seq_length() + ids.shape[1] > MOST:
            self.cache.crop(CONTEXT)
        out = self.model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = out.past_key_values
        self.token = out.logits[:, -1:].argmax(-1)


if __name__ == "__main__":
    with torch.inference_mode():
        generation_worker.main(Text)

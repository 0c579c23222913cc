"""vLLM's side of the generation benchmark, with the protocol of worker.h: random weights in bf16.

    vllm_peer.py make SHAPE.json DIRECTORY   write a config.json
    vllm_peer.py decode|prefill DIRECTORY/vllm

Runs in .venv-bench, with torch and transformers of .venv-test. The defaults of vLLM's CPU build hold, but its engine is a part of this
process, and no core is reserved for it.
"""

import json
import os
import pathlib
import sys

import generation_worker
from generation_worker import CONTEXT, MOST

ROOT = pathlib.Path(__file__).resolve().parent.parent


def make(shape, directory):
    config = pathlib.Path(directory, "vllm", "config.json")
    config.parent.mkdir()
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, **shape}))


class Text:
    def __init__(self, directory):
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_NUM_OF_RESERVED_CPU="0", VLLM_CPU_KVCACHE_SPACE="1",
                          VLLM_LOGGING_LEVEL="ERROR")
        sys.path += map(str, ROOT.glob(".venv-test/lib/python3*/site-packages"))
        sys.stdout = os.fdopen(os.dup(1), "w")  # of the protocol; what vLLM and its processes print goes to stderr
        os.dup2(2, 1)
        import vllm
        self.sampling = vllm.SamplingParams(max_tokens=MOST - CONTEXT, temperature=0, ignore_eos=True, detokenize=False)
        self.engine = vllm.LLM(directory, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2 * MOST,
                               max_num_seqs=1, enable_prefix_caching=False, distributed_executor_backend="uni",
                               disable_log_stats=True).llm_engine
        self.texts = 0
        self.restart(CONTEXT)

    def decode(self):
        if not self.engine.has_unfinished_requests():
            self.restart(CONTEXT)
        self.engine.step()

    def restart(self, length):
        self.engine.abort_request([str(self.texts)])
        self.texts += 1
        self.engine.add_request(str(self.texts), {"prompt_token_ids": [7] * length}, self.sampling)
        self.engine.step()


if __name__ == "__main__":
    generation_worker.main(Text, make)

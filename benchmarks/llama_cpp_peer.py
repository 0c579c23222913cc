"""llama.cpp's side of the generation benchmark, with the protocol of worker.h.

    llama_cpp_peer.py make SHAPE.json DIRECTORY   write this shape with random weights: bf16, q8_0 and q4_0
    llama_cpp_peer.py decode|prefill FILE.gguf

Runs in .venv-bench. llama-quantize's Q4_0 keeps the head in Q6_K.
"""

import ctypes
import os
import pathlib
import sys

import generation_worker
import gguf_files
import llama_cpp
import numpy
from generation_worker import CONTEXT, MOST, PROMPT

FORMATS = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}


def make(shape, directory):
    path = gguf_files.write(shape, directory, "bf16")
    for name, file_type in FORMATS.items():
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype, options.nthread = file_type, 2
        target = str(path.with_name(f"{name}.gguf")).encode()
        if llama_cpp.llama_model_quantize(str(path).encode(), target, ctypes.byref(options)) != 0:
            sys.exit(f"llama_cpp_peer: cannot write {target}")


class Text:
    def __init__(self, file):
        threads = int(os.environ["SHARDWISE_THREADS"])
        self.model = llama_cpp.llama_model_load_from_file(file.encode(), llama_cpp.llama_model_default_params())
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = MOST, PROMPT, PROMPT
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.restart(CONTEXT)

    def decode(self):
        self.read([self.token])

    def restart(self, length):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.length = 0
        self.read([7] * length)

    def read(self, ids):
        if self.length + len(ids) > MOST:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), 0, CONTEXT, -1)
            self.length = CONTEXT
        array = (llama_cpp.llama_token * len(ids))(*ids)
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(ids))) != 0:
            sys.exit("llama_cpp_peer: llama_decode failed")
        self.length += len(ids)
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.vocab_size,))
        self.token = int(logits.argmax())


def silence():
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p())
    return callback  # alive as long as its holder


def main():
    log = silence()
    generation_worker.main(Text, make)
    del log


if __name__ == "__main__":
    main()

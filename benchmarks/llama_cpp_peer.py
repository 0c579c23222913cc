"""llama.cpp's side of the generation benchmark, with the protocol of worker.h.

    llama_cpp_peer.py make DIRECTORY              write the shape of Llama-3.2-1B with random weights: bf16, q8_0 and q4_0
    llama_cpp_peer.py decode|prefill FILE.gguf

Runs in .venv-bench. llama-quantize's Q4_0 keeps the head, which is the embedding, in Q6_K.
"""

import ctypes
import json
import os
import pathlib
import sys
import time

import gguf
import llama_cpp
import numpy

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128256, 2048, 8192, 16, 32, 8, 64
CONTEXT, PROMPT, MOST = 32, 512, 1024
FORMATS = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}


def add_metadata(writer):
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"token{number}" for number in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["t o"])


def make(directory):
    path = pathlib.Path(directory, "bf16.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer)
    random = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
        bf16 = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
        writer.add_tensor(name, bf16.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    matrix("token_embd.weight", VOCAB, HIDDEN)
    writer.add_tensor("output_norm.weight", numpy.ones(HIDDEN, numpy.float32))
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", numpy.ones(HIDDEN, numpy.float32))
        for name, rows, columns in [("attn_q", HEADS * HEAD_DIM, HIDDEN), ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
                                    ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN), ("attn_output", HIDDEN, HEADS * HEAD_DIM),
                                    ("ffn_gate", FFN, HIDDEN), ("ffn_up", FFN, HIDDEN), ("ffn_down", HIDDEN, FFN)]:
            matrix(f"{block}{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = MOST, PROMPT, PROMPT
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.restart(CONTEXT)

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
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (VOCAB,))
        self.token = int(logits.argmax())


def silence():
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p())
    return callback  # alive as long as its holder


def main():
    log = silence()
    what, argument = sys.argv[1:]
    if what == "make":
        return make(argument)
    text = Text(argument)
    step = (lambda: text.read([text.token])) if what == "decode" else (lambda: text.restart(PROMPT))
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
    del log


if __name__ == "__main__":
    main()

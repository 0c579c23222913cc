"""llama.cpp's side of the generation benchmark, with the protocol of worker.h.

    llama_cpp_peer.py make SHAPE.json DIRECTORY   write this shape with random weights: bf16, q8_0 and q4_0
    llama_cpp_peer.py decode|prefill FILE.gguf

Runs in .venv-bench. llama-quantize's Q4_0 keeps the head in Q6_K.
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

CONTEXT, PROMPT, MOST = 32, 512, 1024
FORMATS = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}


def add_metadata(writer, shape):
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"token{number}" for number in range(shape["vocab_size"])])
    writer.add_token_types([1] * shape["vocab_size"])
    writer.add_token_merges(["t o"])


def matrices(shape):
    """Yields (name, rows, columns) of a layer's matrices."""
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = (shape[heads] * shape["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    return [("attn_q", queries, hidden), ("attn_k", keys, hidden), ("attn_v", keys, hidden), ("attn_output", hidden, queries),
            ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]


def make(shape, directory):
    path = pathlib.Path(directory, "bf16.gguf")
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, shape)
    random = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
        bf16 = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
        writer.add_tensor(name, bf16.view(numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name):
        writer.add_tensor(name, numpy.ones(shape["hidden_size"], numpy.float32))

    matrix("token_embd.weight", shape["vocab_size"], shape["hidden_size"])
    if not shape["tie_word_embeddings"]:
        matrix("output.weight", shape["vocab_size"], shape["hidden_size"])
    norm("output_norm.weight")
    for layer in range(shape["num_hidden_layers"]):
        block = f"blk.{layer}."
        norm(f"{block}attn_norm.weight")
        norm(f"{block}ffn_norm.weight")
        for name, rows, columns in matrices(shape):
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
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
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
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.vocab_size,))
        self.token = int(logits.argmax())


def silence():
    callback = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p())
    return callback  # alive as long as its holder


def main():
    log = silence()
    what, *arguments = sys.argv[1:]
    if what == "make":
        shape, directory = arguments
        return make(json.loads(pathlib.Path(shape).read_text()), directory)
    text = Text(*arguments)
    step = (lambda: text.read([text.token])) if what == "decode" else (lambda: text.restart(PROMPT))
    for line in sys.stdin:
        begin = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
    del log


if __name__ == "__main__":
    main()

"""Models with random weights as GGUF files, for the peers that read those. Runs in .venv-bench."""

import pathlib

import gguf
import numpy

TYPES = {"bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
         "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
         "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
         "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0)}


def add_metadata(writer, shape, file_type):
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(shape["hidden_size"])
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_rope_dimension_count(shape["head_dim"])
    writer.add_rope_freq_base(shape["rope_theta"])
    writer.add_layer_norm_rms_eps(shape["rms_norm_eps"])
    writer.add_file_type(file_type)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"token{number}" for number in range(shape["vocab_size"])])
    writer.add_token_types([1] * shape["vocab_size"])
    writer.add_token_merges(["t o"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def matrices_of_layer(shape):
    """Returns (name, rows, columns) of a layer's matrices."""
    hidden, ffn = shape["hidden_size"], shape["intermediate_size"]
    queries, keys = (shape[heads] * shape["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    return [("attn_q", queries, hidden), ("attn_k", keys, hidden), ("attn_v", keys, hidden), ("attn_output", hidden, queries),
            ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn)]


def write(shape, directory, name):
    """Writes DIRECTORY/NAME.gguf, where NAME is one of TYPES, and returns its path."""
    path = pathlib.Path(directory, f"{name}.gguf")
    element, file_type = TYPES[name]
    writer = gguf.GGUFWriter(path, "llama")
    add_metadata(writer, shape, file_type)
    random = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
        writer.add_tensor(name, gguf.quants.quantize(values, element), raw_dtype=element)

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
        for name, rows, columns in matrices_of_layer(shape):
            matrix(f"{block}{name}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

"""Small models in Hugging Face's format, and the arguments of `shardwise doctor` for each: the kinds of models of
doctor/run_doctor_test.cpp, for ranks that are processes."""
import json
import random
import struct

SIZES = {"vocab_size": 17, "initializer_range": 0.3}
LLAMA = SIZES | {"model_type": "llama", "hidden_size": 10, "intermediate_size": 13, "num_hidden_layers": 2,
                 "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4, "max_position_embeddings": 16,
                 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
GPT2 = SIZES | {"model_type": "gpt2", "n_embd": 12, "n_inner": 13, "n_layer": 2, "n_head": 6, "n_positions": 16,
                "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True, "bos_token_id": 0,
                "eos_token_id": 0}
DRAWN = ["--load-format", "dummy"]
# Name, config, and flags. Even shards, which do not reveal swapped ranks, and uneven ones.
KINDS = [
    ("biases", LLAMA | {"attention_bias": True, "mlp_bias": True},
     [*DRAWN, "--tp", "2", "--seq-len", "12", "--dtype", "bf16"]),
    ("qk_norm", LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2, "tie_word_embeddings": True,
                         "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
     [*DRAWN, "--tp", "3", "--seq-len", "11", "--dtype", "fp32"]),
    ("gpt2", GPT2, [*DRAWN, "--tp", "2", "--seq-len", "11", "--dtype", "fp32"]),
    ("from_files", LLAMA, ["--tp", "2", "--seq-len", "11", "--dtype", "fp32"]),
]


def llama_shapes(config):
    h, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": (v, h), "model.norm.weight": (h,), "lm_head.weight": (v, h)}
    for layer in range(config["num_hidden_layers"]):
        parts = {"input_layernorm": (h,), "post_attention_layernorm": (h,), "self_attn.q_proj": (heads, h),
                 "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, heads),
                 "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h), "mlp.down_proj": (h, f)}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


def put_weights(directory, config):
    """Writes random weights to one safetensors file."""
    draw = random.Random(4)
    header, data = {}, b""
    for name, shape in llama_shapes(config).items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        numbers = struct.pack(f"<{count}f", *(draw.gauss(0, 0.3) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def put_models(directory):
    """Writes all models; yields the name of each and the arguments of the doctor."""
    for name, config, flags in KINDS:
        (directory / name).mkdir()
        (directory / name / "config.json").write_text(json.dumps(config))
        if name == "from_files":
            put_weights(directory / name, config)
        yield name, ["doctor", "--model", str(directory / name), "--seed", "9", *flags]

"""GPTQ and AWQ checkpoints, packed here in the published formats, against transformers on the dequantized weights."""
import json
import shutil

import numpy
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file

from generation_test import expected_tokens
from parity import PROGRAM, ParityTest, random_model, run

TOLERANCE = 1e-5  # of the largest logit, as in logits_test
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# Boundaries between heads split groups, and 104 columns are 3.25 groups of 32.
SIZES = dict(vocab_size=127, hidden_size=48, num_attention_heads=6, head_dim=8, num_key_value_heads=3,
             intermediate_size=104)


def packed(codes, bits, order=None):
    """Packs quantized weights [rows, columns] into int32 words [rows, columns · bits / 32], in `order` from the lowest bits."""
    count = 32 // bits
    words = numpy.zeros((codes.shape[0], codes.shape[1] // count), dtype=numpy.uint32)
    for place, code in enumerate(order or range(count)):
        words |= codes[:, code::count].astype(numpy.uint32) << numpy.uint32(place * bits)
    return words.view(numpy.int32)


def coded(weight, bits, groups, is_symmetric):
    """Quantizes weight [out, in] -> quantized weights [out, in], fp16 scales and zero points [out, groups]."""
    count, most = groups.max() + 1, 2**bits - 1
    scales = numpy.zeros((weight.shape[0], count), dtype=numpy.float16)
    zeros = numpy.zeros((weight.shape[0], count), dtype=numpy.int64)
    for group in range(count):
        part = weight[:, groups == group]
        if is_symmetric:
            scales[:, group] = 2 * numpy.abs(part).max(1) / most
            zeros[:, group] = 2**(bits - 1)
        else:
            low, high = numpy.minimum(part.min(1), 0), numpy.maximum(part.max(1), 0)
            scales[:, group] = (high - low) / most
            zeros[:, group] = numpy.clip(numpy.rint(-low / scales[:, group]), 1, most)
    steps = numpy.rint(weight / scales[:, groups].astype(numpy.float32)).astype(numpy.int64)
    return numpy.clip(steps + zeros[:, groups], 0, most), scales, zeros


def numbers(codes, scales, zeros, groups):
    return (codes - zeros[:, groups]).astype(numpy.float32) * scales[:, groups].astype(numpy.float32)


class QuantizedTest(ParityTest):
    def write(self, model, method, bits, group_size, *, is_ordered=False, is_symmetric=False, version=None):
        """Saves the model in the packed format, and replaces its weights by the dequantized ones."""
        random = numpy.random.default_rng(5)
        directory = self.directory / "model"
        shutil.rmtree(directory, ignore_errors=True)
        model.save_pretrained(directory)
        tensors = {name: tensor.numpy() for name, tensor in load_file(directory / "model.safetensors").items()}
        orders = {}
        state = model.state_dict()
        for name in [name for name in tensors if name.endswith("proj.weight") or name.endswith("c_attn.weight")
                     or name.endswith("c_proj.weight") or name.endswith("c_fc.weight")]:
            weight = tensors.pop(name)
            is_conv = not name.endswith("proj.weight") or "c_proj" in name  # GPT-2 stores [in, out]
            weight = weight.T if is_conv else weight
            width = weight.shape[1]
            size = width if group_size == -1 else group_size
            groups = numpy.arange(width) // size
            if is_ordered:  # weights of one input are ordered alike
                kind = name.split(".")[-2]
                key = (name.split(".")[2], "qkv" if kind in ("q_proj", "k_proj", "v_proj")
                       else "gate_up" if kind in ("gate_proj", "up_proj") else kind)
                groups = orders.setdefault(key, random.permutation(groups))
            codes, scales, zeros = coded(weight, bits, groups, is_symmetric)
            module = name.removesuffix(".weight")
            if method == "gptq":
                kept = (zeros - 1) % 2**bits if version != "gptq_v2" else zeros
                tensors[module + ".qweight"] = packed(codes, bits).T.copy()
                tensors[module + ".qzeros"] = packed(kept.T, bits)
                tensors[module + ".g_idx"] = groups.astype(numpy.int32)
            else:
                tensors[module + ".qweight"] = packed(codes.T, bits, AWQ_ORDER)
                tensors[module + ".qzeros"] = packed(zeros.T, bits, AWQ_ORDER)
            tensors[module + ".scales"] = scales.T.copy()
            made = numbers(codes, scales, zeros, groups)
            state[name].copy_(torch.from_numpy(numpy.ascontiguousarray(made.T if is_conv else made)))
        save_numpy(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((directory / "config.json").read_text())
        config["quantization_config"] = dict(quant_method=method, bits=bits, group_size=group_size)
        if method == "gptq":
            config["quantization_config"] |= dict(desc_act=is_ordered, sym=is_symmetric, damp_percent=0.01)
            if version:
                config["quantization_config"]["checkpoint_format"] = version
        else:
            config["quantization_config"] |= dict(zero_point=True, version="gemm")
        (directory / "config.json").write_text(json.dumps(config))
        return model

    def compare(self, model, name):
        ids = torch.randint(model.config.vocab_size, (2, 41))
        with torch.no_grad():
            expected = model(input_ids=ids).logits
        for ranks, logits in self.our_logits(self.directory / "model", ids).items():
            error = (logits - expected).abs().max() / expected.abs().max()
            self.assertLess(error.item(), TOLERANCE, f"{name} {ranks}")

    def test_gptq(self):
        for seed, (bits, group_size, is_symmetric, version) in enumerate(
                ((4, 32, True, None), (4, 32, False, "gptq"), (4, -1, False, "gptq_v2"), (8, -1, True, None),
                 (8, 32, False, None))):
            model = self.write(random_model("llama", 80 + seed, **SIZES), "gptq", bits, group_size,
                               is_symmetric=is_symmetric, version=version)
            self.compare(model, f"gptq {bits} {group_size} {version}")

    def test_gptq_with_desc_act(self):
        for bits in (4, 8):
            model = self.write(random_model("llama", 85, **SIZES), "gptq", bits, 32, is_ordered=True)
            self.compare(model, f"gptq desc_act {bits}")

    def test_awq(self):
        sizes = SIZES | dict(intermediate_size=112)
        for group_size in (16, 8):
            model = self.write(random_model("llama", 86, **sizes), "awq", 4, group_size)
            self.compare(model, f"awq {group_size}")

    def test_families(self):
        """Families with fused or transposed weights in the file, and with biases."""
        for family in ("qwen2", "phi3", "gpt2"):
            fields = dict(n_inner=104) if family == "gpt2" else SIZES
            for method, bits, group_size in (("gptq", 4, 32), ("awq", 4, 8)):
                model = self.write(random_model(family, 87, **fields), method, bits, group_size)
                self.compare(model, f"{family} {method}")

    def test_tokens(self):
        """Greedy ids from a packed directory, from its shards, and at tp sizes that split groups."""
        model = self.write(random_model("llama", 88, **SIZES), "gptq", 4, 32)
        prompt = [7, 1, 99]
        expected = expected_tokens(model, prompt, count=24)[0]
        run(PROGRAM, "shard", self.directory / "model", self.directory / "cut", "--tp", 2)
        for directory, tp in (("model", 1), ("model", 4), ("cut", 2), ("cut", 3)):
            result = json.loads(run(PROGRAM, "generate", "--model", self.directory / directory, "--prompt-ids", "7,1,99",
                                    "--max-new-tokens", 24, "--json", "--tp", tp))
            self.assertEqual(result["token_ids"], expected, f"{directory} {tp}")

    def test_written_files_follow_the_published_format(self):
        """Output of `quantize`, unpacked here: within half a quantization step of the weights, with the logits of that model."""
        model = random_model("llama", 89, **SIZES)
        model.save_pretrained(self.directory / "dense")
        for bits, group_size in ((4, 32), (8, -1)):
            shutil.rmtree(self.directory / "model", ignore_errors=True)
            flags = ("--group-size", group_size) if group_size > 0 else ()
            run(PROGRAM, "quantize", self.directory / "dense", self.directory / "model", "--bits", bits, *flags)
            tensors = {k: v.numpy() for k, v in load_file(self.directory / "model/model.safetensors").items()}
            state = model.state_dict()
            original = {k: v.clone() for k, v in state.items()}
            for module in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
                words = tensors[module + ".qweight"].view(numpy.uint32)
                shifts = numpy.arange(0, 32, bits, dtype=numpy.uint32)
                codes = ((words[:, None, :] >> shifts[None, :, None]) & (2**bits - 1)).reshape(-1, words.shape[1])
                stored = tensors[module + ".qzeros"].view(numpy.uint32)
                zeros = ((stored[:, :, None] >> shifts) & (2**bits - 1)).reshape(stored.shape[0], -1) + 1
                groups, scales = tensors[module + ".g_idx"], tensors[module + ".scales"].astype(numpy.float32)
                made = (codes.astype(numpy.int64) - zeros[groups]).astype(numpy.float32) * scales[groups]
                weight = original[module + ".weight"].numpy()
                self.assertTrue((numpy.abs(made.T - weight) <= scales[groups].T * (0.5 + 1e-5)).all(), module)
                state[module + ".weight"].copy_(torch.from_numpy(made.T.copy()))
            self.compare(model, f"ours {bits}")
            for name, value in original.items():
                state[name].copy_(value)

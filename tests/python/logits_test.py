"""Logits of checkpoints that transformers writes equal transformers' logits."""
import json

import torch

from parity import ParityTest, random_llama

# Relative to the largest logit. The fp32 error is about 1e-6; a wrong rotation, mask or scale is of order 1.
TOLERANCE = 1e-5


class LogitsTest(ParityTest):
    def check(self, model, max_shard_size="1GB"):
        model.save_pretrained(self.directory / "model", max_shard_size=max_shard_size)
        self.compare(model)

    def compare(self, model):
        ids = torch.randint(model.config.vocab_size, (2, 61))
        with torch.no_grad():
            expected = model(input_ids=ids).logits
        ours = self.our_logits(self.directory / "model", ids)
        self.assertEqual(sorted(ours), [f"tp{ranks}{sp}" for ranks in (1, 2, 3, 4) for sp in ("", "_sp")])
        for name, logits in ours.items():
            error = (logits - expected).abs().max() / expected.abs().max()
            self.assertLess(error.item(), TOLERANCE, name)

    def test_grouped_queries_and_odd_sizes(self):
        self.check(random_llama(1))

    def test_one_kv_head_and_tied_head(self):
        self.check(random_llama(2, num_key_value_heads=1, tie_word_embeddings=True))

    def test_explicit_head_dim_with_biases(self):
        self.check(random_llama(3, num_key_value_heads=6, head_dim=14, attention_bias=True, mlp_bias=True))

    def test_llama3_rotary_scaling(self):
        scaling = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                       original_max_position_embeddings=32)
        self.check(random_llama(4, rope_parameters=scaling, head_dim=32))

    def test_several_files(self):
        self.check(random_llama(5), max_shard_size="100KB")
        self.assertTrue((self.directory / "model/model.safetensors.index.json").exists())

    def test_files_of_half_precision(self):
        """Conversion to fp32 while loading is exact, from one file and from several, so the tolerance is that of fp32."""
        for dtype in (torch.float16, torch.bfloat16):
            for size in ("1GB", "100KB"):
                with self.subTest(dtype=dtype, max_shard_size=size):
                    model = random_llama(7)
                    rounded = self.save_rounded(model, dtype, max_shard_size=size)
                    self.assertFalse(torch.equal(rounded.lm_head.weight, model.lm_head.weight))
                    is_indexed = (self.directory / "model/model.safetensors.index.json").exists()
                    self.assertEqual(is_indexed, size == "100KB")
                    self.compare(rounded)

    def test_older_spelling_of_the_config(self):
        rope = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
                    original_max_position_embeddings=16)
        model = random_llama(6, rope_parameters=rope)
        model.save_pretrained(self.directory / "model")
        path = self.directory / "model/config.json"
        config = json.loads(path.read_text())
        config["rope_scaling"] = config.pop("rope_parameters")
        config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
        config["torch_dtype"] = config.pop("dtype")
        path.write_text(json.dumps(config))
        self.compare(model)

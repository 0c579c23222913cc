"""Logits, training curves and files of every family equal transformers'; logits_test and training_test cover Llama."""
import json
import subprocess

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from curves import STEPS, TOLERANCE, CurveTest, reference_curve
from parity import FAMILIES, PROGRAM, ParityTest, random_model, run_bytes

OTHERS = [family for family in FAMILIES if family != "llama"]


class FamiliesTest(ParityTest):
    def compare(self, model):
        ids = torch.randint(model.config.vocab_size, (2, 61))
        with torch.no_grad():
            expected = model(input_ids=ids).logits
        for name, logits in self.our_logits(self.directory / "model", ids).items():
            error = (logits - expected).abs().max() / expected.abs().max()
            self.assertLess(error.item(), TOLERANCE, name)

    def check(self, family, seed, **fields):
        with self.subTest(family=family, **fields):
            model = random_model(family, seed, **fields)
            model.save_pretrained(self.directory / "model")
            self.compare(model)

    def test_logits(self):
        for seed, family in enumerate(OTHERS):
            self.check(family, seed)

    def test_logits_of_variants(self):
        self.check("gpt2", 10, activation_function="gelu", tie_word_embeddings=False)
        self.check("gpt2", 11, n_inner=None, num_hidden_layers=3)
        self.check("mistral", 12, sliding_window=None, num_key_value_heads=1)
        self.check("qwen2", 13, use_sliding_window=False, tie_word_embeddings=True)
        self.check("qwen2", 14, num_hidden_layers=3,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"])
        self.check("qwen3", 15, attention_bias=True, tie_word_embeddings=True, num_key_value_heads=6)
        self.check("qwen3", 16, use_sliding_window=True, sliding_window=1, max_window_layers=0)
        self.check("phi3", 17, sliding_window=None, num_key_value_heads=6, tie_word_embeddings=True)
        self.check("phi3", 18, rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.75))

    def test_files_of_half_precision(self):
        """Fused, transposed and tied weights, converted to fp32 while loading."""
        for seed, family in enumerate(OTHERS):
            for dtype in (torch.float16, torch.bfloat16):
                with self.subTest(family=family, dtype=dtype):
                    self.compare(self.save_rounded(random_model(family, 30 + seed), dtype))

    def rewrite_config(self, change):
        path = self.directory / "model/config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    def test_older_spellings(self):
        def older(config):
            rope = config.pop("rope_parameters", None)
            if rope:
                config |= {name: value for name, value in rope.items() if name != "rope_type"}
            config["torch_dtype"] = config.pop("dtype")
            config.pop("layer_types", None)

        for family in OTHERS:
            with self.subTest(family=family):
                model = random_model(family, 20)
                model.save_pretrained(self.directory / "model")
                self.rewrite_config(older)
                self.compare(model)

    def test_gpt2_in_the_original_format(self):
        """Names without a prefix, and causal masks among the weights."""
        model = random_model("gpt2", 21)
        model.save_pretrained(self.directory / "model")
        path = self.directory / "model/model.safetensors"
        published = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
        published |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 8, 8) for layer in range(2)}
        save_file(published, path, metadata={"format": "pt"})
        self.rewrite_config(lambda config: config.update(n_ctx=config["n_positions"]))
        self.compare(model)

    def test_names_without_a_prefix(self):
        """The files of a family's base class, loaded whole and sharded, and listed by inspect."""
        for seed, family in enumerate(FAMILIES):
            with self.subTest(family=family):
                model = random_model(family, 50 + seed, tie_word_embeddings=True)
                model.base_model.save_pretrained(self.directory / "model")
                names = sorted(load_file(self.directory / "model/model.safetensors"))
                self.assertFalse(any(name.startswith(model.base_model_prefix + ".") for name in names))
                self.compare(model)
                listed = json.loads(run_bytes(PROGRAM, "inspect", self.directory / "model", "--tp", 2, "--json"))
                self.assertEqual(sorted(tensor["name"] for tensor in listed["tensors"]), names)
                self.assertFalse(any(tensor["rule"] == "not read" for tensor in listed["tensors"]))
                run_bytes(PROGRAM, "shard", self.directory / "model", self.directory / family, "--tp", 2)
                flags = ("--prompt-ids", "3,1,4", "--max-new-tokens", 9, "--tp", 2)
                said = [run_bytes(PROGRAM, "generate", "--model", self.directory / name, *flags)
                        for name in ("model", family)]
                self.assertEqual(said[0], said[1])

    def test_a_tied_head_with_other_values(self):
        """transformers uses the head in the file; we warn in one line, and do so too if the config does not tie it."""
        model = random_model("qwen2", 60, tie_word_embeddings=True)
        model.save_pretrained(self.directory / "model")
        path = self.directory / "model/model.safetensors"
        tensors = load_file(path)
        embedding = tensors["model.embed_tokens.weight"]
        command = [PROGRAM, "generate", "--model", self.directory / "model", "--prompt-ids", "1", "--tp", 2]

        def warnings(head):
            save_file(tensors | {"lm_head.weight": head}, path, metadata={"format": "pt"})
            done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [line for line in done.stderr.splitlines() if "lm_head" in line]

        self.assertEqual(warnings(embedding.clone()), [])
        head = embedding.clone()
        head[-1, -1] += 1
        warning, = warnings(head)
        self.assertRegex(warning, "^warning: generate: lm_head.weight should equal model.embed_tokens.weight in .*; got "
                                  "another dtype, shape or value, and it is not used; set tie_word_embeddings to false")
        self.compare(model)
        self.rewrite_config(lambda config: config.update(tie_word_embeddings=False))
        self.assertEqual(warnings(head), [])
        self.rewrite_config(lambda config: config.update(tie_word_embeddings=True))
        theirs = AutoModelForCausalLM.from_pretrained(self.directory / "model").eval()
        self.assertTrue(torch.equal(theirs.lm_head.weight, head))
        self.rewrite_config(lambda config: config.update(tie_word_embeddings=False))
        self.compare(theirs)

    def test_greedy_generation(self):
        for family in OTHERS:
            with self.subTest(family=family):
                model = random_model(family, 22, vocab_size=256)
                model.save_pretrained(self.directory / "model")
                prompt = "tensor parallel"
                ids = torch.tensor([list(prompt.encode())])
                expected = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, ids.shape[1]:]
                said = run_bytes(PROGRAM, "generate", "--model", self.directory / "model", "--prompt", prompt,
                                 "--max-new-tokens", 20, "--tp", 2)
                text = bytes(expected.tolist()).decode(errors="replace")
                self.assertEqual(said.decode().removeprefix(prompt), text + "\n")


class FamiliesTrainingTest(CurveTest):
    def test_curves(self):
        """At 1, 2 and 3 ranks, from weights that transformers wrote."""
        for family in OTHERS:
            model = self.initial_model(family)
            theirs = reference_curve(model, self.all_windows, STEPS)
            for flags in (["--tp", 1], ["--tp", 2], ["--tp", 3], ["--tp", 3, "--no-sequence-parallel"]):
                with self.subTest(family=family, flags=flags):
                    self.check_curve(theirs, *flags)

    def test_our_checkpoints_resume_and_have_the_same_loss_there(self):
        for family in OTHERS:
            with self.subTest(family=family):
                self.initial_model(family)
                self.check_checkpoint(self.directory / family)

"""`shardwise generate` against transformers: tokens, log probabilities, prompts, stop conditions and text."""
import json
import math
import os
import re
import subprocess
import unittest.mock

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast, TypicalLogitsWarper

from parity import FAMILIES, PROGRAM, ParityTest, random_model, run

TOKENS = 64
DRAWS = 3000  # of one of 127 equally likely tokens none is missed
# The logits are of order one, so log probabilities have the same error bound.
TOLERANCE = 1e-4
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def expected_tokens(model, prompt, count=TOKENS, **options):
    """Returns greedy ids, and the log probability of each under the model's distribution."""
    options = dict(do_sample=False, pad_token_id=0) | options
    prompt = torch.tensor([prompt])
    # Without a mask transformers would treat tokens of id 0 as padding.
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, **options)[0]
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0].double()
    new = ids[prompt.shape[1]:]
    logprobs = logits.log_softmax(-1)[prompt.shape[1] - 1:-1].gather(1, new[:, None])[:, 0]
    return new.tolist(), logprobs


# The keys of generation_config.json by what shardwise does: it does as transformers does (the tests below), or it names them in
# a warning (here with a value that changes tokens in transformers), or they change no token of a decoder without
# those of the second kind.
HONORED = set("""do_sample temperature top_k top_p min_p typical_p repetition_penalty suppress_tokens begin_suppress_tokens
    no_repeat_ngram_size bad_words_ids min_new_tokens min_length max_new_tokens max_length stop_strings eos_token_id
    forced_eos_token_id""".split())
NAMED = dict(num_beams=2, num_beam_groups=2, num_return_sequences=2, penalty_alpha=0.6, dola_layers="high", diversity_penalty=1.0,
             guidance_scale=1.5, sequence_bias=[[[1], -2.5]], force_words_ids=[[1]], constraints=[1], forced_bos_token_id=1,
             exponential_decay_length_penalty=[5, 1.1], encoder_repetition_penalty=1.3, encoder_no_repeat_ngram_size=2,
             epsilon_cutoff=0.1, eta_cutoff=0.1, top_h=0.4, watermarking_config={"bias": 2.5}, token_healing=True, max_time=1.0)
WITHOUT_EFFECT = set("""_from_model_config transformers_version bos_token_id pad_token_id decoder_start_token_id early_stopping
    length_penalty low_memory output_attentions output_hidden_states output_logits output_scores return_dict_in_generate
    remove_invalid_values renormalize_logits use_cache cache_config cache_implementation max_cache_len prefill_chunk_size
    compile_config disable_compile continuous_batching_config is_assistant assistant_confidence_threshold assistant_early_exit
    assistant_ensemble_weight assistant_lookbehind target_lookbehind num_assistant_tokens num_assistant_tokens_schedule
    max_matching_ngram_size prompt_lookup_num_tokens speculation_type use_mtp""".split())


class GenerationTest(ParityTest):
    def generate(self, *flags):
        return json.loads(run(PROGRAM, "generate", "--model", self.directory / "model", "--json", *flags))

    def save(self, model):
        model.save_pretrained(self.directory / "model")
        return model

    def batch_file(self, prompts):
        path = self.directory / "batch.jsonl"
        path.write_text("".join(json.dumps({"prompt_ids": prompt}) + "\n" for prompt in prompts))
        return path

    def expect(self, result, expected, name):
        ids, logprobs = expected
        self.assertEqual(result["token_ids"], ids, name)
        self.assertLess((torch.tensor(result["logprobs"], dtype=torch.double) - logprobs).abs().max(), TOLERANCE, name)

    def test_tokens_of_every_family(self):
        """At 1 to 4 ranks; prompts of several lengths in batches of several sizes, with and without chunked prefill."""
        for seed, family in enumerate(FAMILIES):
            model = self.save(random_model(family, 40 + seed))
            prompts = [torch.randint(model.config.vocab_size, (length,)).tolist() for length in (1, 2, 19, 70)]
            expected = [expected_tokens(model, prompt) for prompt in prompts]
            for tp, batch, chunk in ((1, 1, 512), (1, 4, 16), (2, 4, 512), (3, 2, 7), (4, 3, 33)):
                results = self.generate("--batch-file", self.batch_file(prompts), "--max-new-tokens", TOKENS, "--tp", tp,
                                        "--batch-size", batch, "--chunk", chunk, "--logprobs")["results"]
                for prompt, result, tokens in zip(prompts, results, expected, strict=True):
                    self.assertEqual(result["prompt_ids"], prompt)
                    self.assertEqual(result["finish_reason"], "length")
                    self.expect(result, tokens, f"{family} tp {tp} batch {batch} chunk {chunk}")

    def test_uneven_heads_and_vocabularies(self):
        for seed, fields in enumerate((dict(num_key_value_heads=1), dict(vocab_size=17, tie_word_embeddings=True),
                                       dict(vocab_size=50257), dict(num_key_value_heads=6, intermediate_size=7))):
            model = self.save(random_model("llama", 60 + seed, **fields))
            prompt = torch.randint(model.config.vocab_size, (5,)).tolist()
            expected = expected_tokens(model, prompt)
            for tp in (1, 2, 4, 5):
                result = self.generate("--prompt-ids", ",".join(map(str, prompt)), "--max-new-tokens", TOKENS, "--tp", tp,
                                       "--logprobs")
                self.expect(result, expected, f"{fields} tp {tp}")

    def test_penalty_and_stop_conditions(self):
        """generation_config.json has the defaults; the command line overrides them."""
        model = self.save(random_model("llama", 70))
        prompt = [3, 1, 4, 1, 5]
        penalized = expected_tokens(model, prompt, repetition_penalty=1.3)
        end = penalized[0][20]
        config = GenerationConfig(repetition_penalty=1.3, eos_token_id=[end, 126], pad_token_id=126, do_sample=False,
                                  max_new_tokens=50)
        config.save_pretrained(self.directory / "model")
        flags = ("--prompt-ids", "3,1,4,1,5", "--tp", 2)
        ids = self.generate(*flags)
        theirs = model.generate(torch.tensor([prompt]), generation_config=config)[0, len(prompt):]
        self.assertEqual(ids["token_ids"], theirs.tolist())
        self.assertEqual(ids["finish_reason"], "stop")
        longer = self.generate(*flags, "--ignore-eos")
        self.assertEqual(longer["token_ids"], penalized[0][:50])
        self.assertEqual(longer["finish_reason"], "length")
        plain = self.generate(*flags, "--ignore-eos", "--repetition-penalty", 1, "--max-new-tokens", 30)
        self.assertEqual(plain["token_ids"], expected_tokens(model, prompt, count=30)[0])

    def test_rules_of_the_generation_config(self):
        """Each rule alone changes the tokens as transformers' processors do; then all together."""
        model = self.save(random_model("llama", 75, vocab_size=17))
        prompt = [3, 1, 4, 1, 5, 9, 2, 6]
        plain, _ = expected_tokens(model, prompt, count=40)
        bigram = plain[5:7]
        rules = [dict(suppress_tokens=[plain[0], plain[9]]), dict(begin_suppress_tokens=[plain[0]]),
                 dict(no_repeat_ngram_size=2), dict(no_repeat_ngram_size=3), dict(no_repeat_ngram_size=1),
                 dict(bad_words_ids=[[plain[3]], bigram, prompt + [plain[0]]]),
                 dict(eos_token_id=[plain[4]], min_new_tokens=20), dict(eos_token_id=[plain[4]], min_length=25),
                 dict(eos_token_id=plain[4], max_length=30), dict(max_length=30),
                 dict(eos_token_id=[16], forced_eos_token_id=[16]),
                 dict(suppress_tokens=[plain[0]], no_repeat_ngram_size=3, bad_words_ids=[bigram], min_new_tokens=12,
                      eos_token_id=[plain[7]], forced_eos_token_id=plain[7], repetition_penalty=1.2)]
        for fields in rules:
            length = {} if "max_length" in fields else dict(max_new_tokens=40 if "no_repeat_ngram_size" not in fields
                                                            or fields["no_repeat_ngram_size"] > 1 else 8)
            config = GenerationConfig(do_sample=False, pad_token_id=16, **length, **fields)
            config.save_pretrained(self.directory / "model")
            theirs = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)),
                                    generation_config=config)[0, len(prompt):].tolist()
            for tp in (1, 3):
                ours = self.generate("--prompt-ids", ",".join(map(str, prompt)), "--tp", tp)["token_ids"]
                self.assertEqual(ours, theirs, f"{fields} tp {tp}")
            self.assertNotEqual(theirs, plain, fields)

    def test_typical_sampling(self):
        """The tokens that can be drawn are those that transformers keeps."""
        model = self.save(random_model("llama", 76))
        prompt = torch.tensor([[7, 8]])
        with torch.no_grad():
            scores = model(prompt).logits[:, -1]
        for typical_p in (0.2, 0.6, 0.95):
            kept = TypicalLogitsWarper(mass=typical_p)(prompt, scores)[0].isfinite().nonzero()[:, 0].tolist()
            GenerationConfig(do_sample=True, top_k=0, typical_p=typical_p).save_pretrained(self.directory / "model")
            drawn = {result["token_ids"][0] for result in self.generate(
                "--prompt-ids", "7,8", "--max-new-tokens", 1, "--num-return", DRAWS, "--tp", 2)["results"]}
            self.assertEqual(drawn, set(kept), typical_p)

    def test_sampling_config_without_top_k(self):
        """At a temperature that makes all logits equal, the sampled tokens are among transformers' default top 50."""
        model = self.save(random_model("llama", 74))
        GenerationConfig(do_sample=True, temperature=1000.0).save_pretrained(self.directory / "model")
        self.assertNotIn("top_k", json.loads((self.directory / "model" / "generation_config.json").read_text()))
        theirs = AutoModelForCausalLM.from_pretrained(self.directory / "model").generate(
            torch.tensor([[7, 8]]), attention_mask=torch.ones(1, 2), max_new_tokens=1, num_return_sequences=DRAWS,
            pad_token_id=0)[:, 2]
        self.assertEqual(len(set(theirs.tolist())), 50)
        flags = ("--prompt-ids", "7,8", "--max-new-tokens", 1, "--num-return", DRAWS, "--tp", 2)
        for top_k, expected in (((), set(theirs.tolist())), (("--top-k", 0), set(range(model.config.vocab_size)))):
            drawn = {result["token_ids"][0] for result in self.generate(*flags, *top_k)["results"]}
            self.assertEqual(drawn, expected, top_k)

    def test_evaluation(self):
        """Mean negative log-likelihood of a text in several windows and in one window."""
        model = self.save(random_model("qwen3", 73, vocab_size=256))
        text = "Where a value lives is part of its type. — " * 9
        path = self.directory / "text"
        path.write_text(text)
        ids = torch.tensor(list(text.encode()))
        for length in (512, 50, 7):
            losses = []
            for begin in range(0, len(ids) - 1, length):
                window = ids[begin:begin + length + 1]
                with torch.no_grad():
                    logits = model(input_ids=window[None, :-1]).logits[0].double()
                losses.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="none"))
            expected = torch.cat(losses).mean().item()
            for tp in (1, 3):
                result = json.loads(run(PROGRAM, "eval", "--model", self.directory / "model", "--text", path, "--json",
                                        "--seq-len", length, "--tp", tp))
                self.assertEqual((result["tokens"], result["predicted_tokens"]), (len(ids), len(ids) - 1))
                self.assertLess(abs(result["nll"] - expected), 1e-5)
                self.assertAlmostEqual(result["perplexity"], math.exp(result["nll"]), places=6)

    def tokenizer(self):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=280, special_tokens=["<s>", "<user>", "<assistant>"],
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(["tensor parallel and sequence parallel, naïve façade — 並列"] * 9, trainer)
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")
        fast.chat_template = TEMPLATE
        fast.save_pretrained(self.directory / "model")
        return fast

    def test_text(self):
        """The model's tokenizer and chat template; the text ends before a stop string, on every rank."""
        model = self.save(random_model("llama", 71, vocab_size=280))
        tokenizer = self.tokenizer()
        prompt = "tensor naïve 並列"
        expected = expected_tokens(model, tokenizer(prompt).input_ids)[0]
        text = tokenizer.decode(expected, skip_special_tokens=True)
        for tp in (1, 2):
            flags = ("--prompt", prompt, "--max-new-tokens", TOKENS, "--tp", tp)
            result = self.generate(*flags)
            self.assertEqual((result["prompt_ids"], result["token_ids"], result["text"]),
                             (tokenizer(prompt).input_ids, expected, text))
            streamed = run(PROGRAM, "generate", "--model", self.directory / "model", *flags)
            self.assertEqual(streamed, prompt + text + "\n")
            stop = text[len(text) // 2:][:3]
            stopped = self.generate(*flags, "--stop", stop, "never said")
            self.assertEqual(stopped["text"], text[:text.index(stop)])
            self.assertEqual(stopped["finish_reason"], "stop")
            self.assertEqual(stopped["token_ids"], expected[:len(stopped["token_ids"])])
            self.assertLess(len(stopped["token_ids"]), TOKENS)
        chat = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)["input_ids"]
        lines = self.directory / "chats.jsonl"
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "parallel"},
                    {"role": "user", "content": "z"}]
        lines.write_text(json.dumps({"messages": messages, "max_new_tokens": 3}) + "\n" + json.dumps({"prompt": prompt}))
        first, second = self.generate("--batch-file", lines, "--max-new-tokens", 5)["results"]
        self.assertEqual(first["prompt_ids"],
                         tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])
        self.assertEqual((len(first["token_ids"]), second["token_ids"]), (3, expected[:5]))
        result = self.generate("--prompt", prompt, "--chat", "--max-new-tokens", 5)
        self.assertEqual((result["prompt_ids"], result["token_ids"]), (chat, expected_tokens(model, chat, count=5)[0]))

    def test_stop_strings_of_the_generation_config(self):
        model = self.save(random_model("llama", 71, vocab_size=280))
        tokenizer = self.tokenizer()
        prompt = tokenizer("a", return_tensors="pt")
        text = tokenizer.decode(expected_tokens(model, prompt.input_ids[0].tolist())[0], skip_special_tokens=True)
        # Of several tokens, and such as begin and end within one. transformers finds no character of several tokens.
        words = [found[cut:] for found in re.findall("[ -~]{3,}", text) for cut in (0, 1)]
        self.assertGreater(len(words), 3)
        for word in words:
            stops = ["never said", word]
            config = GenerationConfig(do_sample=False, max_new_tokens=TOKENS, pad_token_id=0, stop_strings=stops)
            config.save_pretrained(self.directory / "model")
            theirs = model.generate(**prompt, generation_config=config, tokenizer=tokenizer)[0, prompt.input_ids.shape[1]:]
            self.assertLess(len(theirs), TOKENS)
            for tp in (1, 2):
                self.assertEqual(self.generate("--prompt", "a", "--tp", tp)["token_ids"], theirs.tolist(), stops)

    def test_every_key_of_the_generation_config(self):
        """A key that is new in transformers must be added above."""
        self.assertEqual(set(GenerationConfig().__dict__), HONORED | set(NAMED) | WITHOUT_EFFECT)
        self.save(random_model("llama", 78))
        (self.directory / "model" / "generation_config.json").write_text(json.dumps(NAMED))
        code, _, errors = self.printed("--prompt-ids", "1", "--max-new-tokens", 1)
        self.assertEqual(code, 0, errors)
        warnings = [line for line in errors.splitlines() if "SW0544" in line]
        self.assertEqual(len(warnings), 1, errors)
        for name in NAMED:
            self.assertIn(f" {name} ", warnings[0])

    def printed(self, *flags, text=None):
        command = [str(part) for part in (PROGRAM, "generate", "--model", self.directory / "model", *flags)]
        done = subprocess.run(command, input=text, capture_output=True, timeout=300)
        return done.returncode, done.stdout, done.stderr.decode()

    def test_an_empty_prompt_is_the_bos_token(self):
        model = self.save(random_model("llama", 77, vocab_size=280))
        tokenizer = self.tokenizer()
        bos = tokenizer.bos_token_id
        self.assertEqual(tokenizer("").input_ids, [])  # it adds none by itself
        expected = expected_tokens(model, [bos])[0]
        model.generation_config.bos_token_id = bos
        theirs = model.generate(max_new_tokens=TOKENS, do_sample=False, pad_token_id=1)[0]  # 0 is BOS here
        self.assertEqual(theirs.tolist(), [bos] + expected)
        (self.directory / "empty").touch()
        for tp in (1, 2):
            for prompt in (("--prompt", ""), ("--prompt-file", self.directory / "empty")):
                result = self.generate(*prompt, "--max-new-tokens", TOKENS, "--tp", tp)
                self.assertEqual((result["prompt"], result["prompt_ids"], result["token_ids"]), ("", [bos], expected))
        code, said, _ = self.printed("--prompt", "", "--max-new-tokens", TOKENS)
        self.assertEqual((code, said.decode()), (0, tokenizer.decode(expected, skip_special_tokens=True) + "\n"))
        lines = self.directory / "lines"
        lines.write_text(json.dumps({"prompt": ""}) + "\n")
        result, = self.generate("--batch-file", lines, "--max-new-tokens", TOKENS)["results"]
        self.assertEqual((result["prompt_ids"], result["token_ids"]), ([bos], expected))
        code, said, errors = self.printed("--prompt", "", "--tokenizer", "bytes", "--tp", 2)
        self.assertEqual((code, said), (2, b""))
        self.assertRegex(errors, r"^shardwise: generate: an empty prompt needs a tokenizer with a BOS token; got none .*\n$")

    def test_prompts_from_standard_input(self):
        """The same output as from a file, on one rank and several; other launchers' ranks have no common input."""
        self.save(random_model("llama", 78, vocab_size=280))
        self.tokenizer()
        prompt = self.directory / "prompt"
        prompt.write_text("tensor naïve 並列\n" * 30)
        lines = self.batch_file([[1, 2, 3], [4]] * 4)
        more = self.directory / "more"
        more.write_bytes(lines.read_bytes() + b" " * (1 << 20))  # more than a pipe holds
        for flag, path in (("--prompt-file", prompt), ("--batch-file", lines), ("--batch-file", more)):
            for tp in (1, 3):
                flags = ("--max-new-tokens", 8, "--tp", tp)
                from_file, piped = self.printed(flag, path, *flags), self.printed(flag, "-", *flags, text=path.read_bytes())
                self.assertEqual(from_file[0], 0, from_file[2])
                self.assertEqual(piped[:2], from_file[:2], piped[2])
        code, said, errors = self.printed("--batch-file", "-", "--tp", 2, text=b'{"prompt": "x"}\n{"prompt": 3}\n')
        self.assertEqual((code, said), (2, b""))
        self.assertTrue(errors.startswith("shardwise: standard input: line 2: prompt must be a string"), errors)
        torchrun = dict(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost",
                        MASTER_PORT="29517", TORCHELASTIC_RUN_ID="input", TORCHELASTIC_RESTART_COUNT="0")
        with unittest.mock.patch.dict(os.environ, torchrun):
            code, said, errors = self.printed("--prompt-file", "-", "--tp", 2, text=b"x")
        self.assertEqual((code, said, errors.count("\n")), (2, b"", 1))
        self.assertIn("generate: --prompt-file - needs ranks that --tp starts; got 2 of another launcher", errors)

    def test_a_batch_of_one_is_a_batch(self):
        """A line's output does not depend on the number of lines."""
        self.save(random_model("llama", 79))
        two, one = self.batch_file([[1, 2, 3], [4]]).read_bytes(), self.batch_file([[1, 2, 3]])
        for tp in (1, 2):
            flags = ("--max-new-tokens", 8, "--tp", tp)
            code, first, errors = self.printed("--batch-file", one, *flags)
            self.assertEqual(code, 0, errors)
            _, both, _ = self.printed("--batch-file", "-", *flags, text=two)
            self.assertEqual(both.splitlines(keepends=True)[:1], [first])
            self.assertEqual(len(self.generate("--batch-file", one, *flags)["results"]), 1)
        self.assertNotIn("results", self.generate("--prompt-ids", "1,2,3", *flags))

    def test_invalid_utf8_is_counted(self):
        self.save(random_model("llama", 80, vocab_size=280))
        tokenizer = self.tokenizer()
        text = "naïve ".encode() + b"\xff\xe4\xb8 \xc3"
        code, said, errors = self.printed("--prompt-file", "-", "--max-new-tokens", 4, "--tp", 2, text=text)
        self.assertEqual(code, 0, errors)
        self.assertEqual([line for line in errors.splitlines() if "UTF-8" in line],
                         ["warning: generate: the text should be UTF-8; got 4 other bytes, the first at offset 7 of the "
                          "prompt; the tokenizer replaces them by U+FFFD [SW0590]"])
        path = self.directory / "text"
        path.write_bytes(text)
        ids = self.generate("--prompt-file", path, "--max-new-tokens", 1)["prompt_ids"]
        self.assertEqual(ids, tokenizer(text.decode(errors="replace")).input_ids)
        self.assertNotIn("UTF-8", self.printed("--prompt-file", path, "--max-new-tokens", 1, "--tokenizer", "bytes")[2])
        done = subprocess.run([PROGRAM, "eval", "--model", self.directory / "model", "--text", path], capture_output=True,
                              text=True, timeout=300)
        self.assertEqual(done.stderr.count("the text should be UTF-8; got 4 other bytes, the first at offset 7 of " + str(path)),
                         1, done.stderr)

    def test_samples(self):
        """--num-return samples with consecutive seeds, equal at every tp."""
        self.save(random_model("llama", 72))
        flags = ("--prompt-ids", "7,8", "--max-new-tokens", 12, "--temperature", 1.1, "--top-k", 20, "--top-p", 0.95)
        three = [result["token_ids"] for result in self.generate(*flags, "--seed", 5, "--num-return", 3)["results"]]
        self.assertEqual(len({tuple(ids) for ids in three}), 3)
        for tp in (2, 3):
            for offset, ids in enumerate(three):
                self.assertEqual(self.generate(*flags, "--seed", 5 + offset, "--tp", tp)["token_ids"], ids)

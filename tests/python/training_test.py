"""Training gives the curve of transformers under torch's AdamW, and checkpoints that transformers reads."""
import math

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from parity import PROGRAM, ParityTest, random_llama, read_log, run

STEPS, SEQ_LEN, BATCH, ACCUMULATED, SEED = 20, 40, 2, 3, 11
PEAK_LR, LAST_LR, WARMUP = 3e-3, 5e-4, 4
WEIGHT_DECAY, CLIP = 0.2, 0.5
WINDOWS_PER_STEP = BATCH * ACCUMULATED

# What fp32 leaves after 20 steps is about 1e-6.
TOLERANCE = 1e-5

FLAGS = ["--seq-len", SEQ_LEN, "--batch-size", BATCH, "--grad-accum", ACCUMULATED, "--seed", SEED, "--lr", PEAK_LR,
         "--min-lr", LAST_LR, "--warmup", WARMUP, "--weight-decay", WEIGHT_DECAY, "--clip-grad", CLIP]


def learning_rate(step, horizon):
    """Linear warm-up, then half a cosine; steps count from 1."""
    if step <= WARMUP:
        return PEAK_LR * step / WARMUP
    return LAST_LR + (PEAK_LR - LAST_LR) * (1 + math.cos(math.pi * (step - WARMUP) / (horizon - WARMUP))) / 2


def loss_of(model, windows):
    logits = model(input_ids=windows[:, :-1]).logits
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def reference_curve(model, windows, steps):
    """Loss, gradient norm and learning rate of every step by transformers and torch."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=WEIGHT_DECAY),
                                   dict(params=others, weight_decay=0.0)], betas=(0.9, 0.95), eps=1e-8)
    curve = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.zero_grad()
        loss = loss_of(model, windows[(step - 1) * WINDOWS_PER_STEP: step * WINDOWS_PER_STEP])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        curve.append(dict(loss=loss.item(), grad_norm=norm.item(), lr=optimizer.param_groups[0]["lr"]))
    return curve


class TrainingTest(ParityTest):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text"
        self.text.write_bytes(b"".join(b"%d squared is %d\n" % (i, i * i) for i in range(400)))
        self.all_windows = self.windows(self.text, SEQ_LEN, SEED, (STEPS + 1) * WINDOWS_PER_STEP)

    def train(self, *flags):
        """The log of a run."""
        log = self.folder / "log"
        run(PROGRAM, "train", "--text", self.text, "--log", log, *FLAGS, *flags)
        return read_log(log)

    def initial_model(self, **fields):
        model = random_llama(7, vocab_size=256, **fields)
        model.save_pretrained(self.folder / "initial")
        return model

    def check_curve(self, *flags, **fields):
        model = self.initial_model(**fields)
        ours = self.train("--init", self.folder / "initial", "--steps", STEPS, *flags)
        theirs = reference_curve(model, self.all_windows, STEPS)
        self.assertEqual([line["step"] for line in ours], list(range(1, STEPS + 1)))
        for our, their in zip(ours, theirs):
            self.assertAlmostEqual(our["loss"], their["loss"], delta=TOLERANCE, msg=our)
            self.assertAlmostEqual(our["grad_norm"], their["grad_norm"], delta=TOLERANCE * their["grad_norm"], msg=our)
            self.assertAlmostEqual(our["lr"], their["lr"], delta=1e-9, msg=our)
        # The curve must go somewhere, and the clip must bite, or equal curves say little.
        self.assertLess(theirs[-1]["loss"], theirs[0]["loss"] - 1)
        self.assertGreater(theirs[0]["grad_norm"], 2 * CLIP)

    def test_curve_of_one_rank(self):
        self.check_curve("--tp", 1)

    def test_curve_of_two_ranks_with_sequence_parallelism(self):
        self.check_curve("--tp", 2, attention_bias=True, mlp_bias=True)

    def test_curve_of_three_ranks_tied_without_sequence_parallelism(self):
        self.check_curve("--tp", 3, "--no-sequence-parallel", tie_word_embeddings=True)

    def test_our_checkpoint_has_the_same_loss_there(self):
        for is_tied in (False, True):
            with self.subTest(is_tied=is_tied):
                self.initial_model(tie_word_embeddings=is_tied)
                saved = self.folder / f"saved-{is_tied}"
                horizon = ["--steps", STEPS + 1]
                self.train("--init", self.folder / "initial", "--tp", 2, *horizon, "--stop-after", STEPS, "--save", saved)
                next_step = self.train("--resume", saved, *horizon)[-1]
                model, report = AutoModelForCausalLM.from_pretrained(saved / "latest", output_loading_info=True)
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(report[kind], kind)
                self.assertEqual(next_step["step"], STEPS + 1)
                with torch.no_grad():
                    loss = loss_of(model, self.all_windows[STEPS * WINDOWS_PER_STEP:]).item()
                self.assertAlmostEqual(next_step["loss"], loss, delta=TOLERANCE)

    def test_our_bf16_checkpoint_loads_there(self):
        self.initial_model()
        self.train("--init", self.folder / "initial", "--dtype", "bf16", "--tp", 2, "--steps", WARMUP,
                   "--save", self.folder / "saved")
        model, report = AutoModelForCausalLM.from_pretrained(self.folder / "saved/latest", output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(report[kind], kind)
        self.assertEqual({parameter.dtype for parameter in model.parameters()}, {torch.bfloat16})
        ids = self.all_windows[:2, :-1]
        with torch.no_grad():
            expected = model.float()(input_ids=ids).logits
        for name, logits in self.our_logits(self.folder / "saved/latest", ids).items():
            self.assertLess(((logits - expected).abs().max() / expected.abs().max()).item(), TOLERANCE, name)

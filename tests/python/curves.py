"""Shared code of the tests that compare training with transformers under torch's AdamW."""
import math

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from parity import PROGRAM, ParityTest, random_model, read_log, run

STEPS, SEQ_LEN, BATCH, ACCUMULATED, SEED = 20, 40, 2, 3, 11
PEAK_LR, LAST_LR, WARMUP = 3e-3, 5e-4, 4
WEIGHT_DECAY, CLIP = 0.2, 0.5
WINDOWS_PER_STEP = BATCH * ACCUMULATED

# Ten times the measured fp32 error after 20 steps: 1e-6 of the loss, 3e-7 of the gradient norm.
TOLERANCE = 1e-5

FLAGS = ["--seq-len", SEQ_LEN, "--batch-size", BATCH, "--grad-accum", ACCUMULATED, "--seed", SEED, "--lr", PEAK_LR,
         "--min-lr", LAST_LR, "--warmup", WARMUP, "--weight-decay", WEIGHT_DECAY, "--clip-grad", CLIP]


def learning_rate(step, horizon):
    """Linear warm-up, then cosine decay; steps count from 1."""
    if step <= WARMUP:
        return PEAK_LR * step / WARMUP
    return LAST_LR + (PEAK_LR - LAST_LR) * (1 + math.cos(math.pi * (step - WARMUP) / (horizon - WARMUP))) / 2


def loss_of(model, windows):
    logits = model(input_ids=windows[:, :-1]).logits
    return cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def reference_curve(model, windows, steps):
    """Returns loss, gradient norm and learning rate of every step by transformers and torch."""
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


class CurveTest(ParityTest):
    def setUp(self):
        super().setUp()
        self.text = self.directory / "text"
        self.text.write_bytes(b"".join(b"%d squared is %d\n" % (i, i * i) for i in range(400)))
        self.all_windows = self.windows(self.text, SEQ_LEN, SEED, (STEPS + 1) * WINDOWS_PER_STEP)
        self.check_windows()

    def check_windows(self):
        """The windows are the program's own, so the two curves would agree on wrong ones too: they are pieces of the text,
        the first tokens of no two the same."""
        starts = {self.text.read_bytes().find(bytes(window.tolist())) for window in self.all_windows}
        self.assertNotIn(-1, starts)
        self.assertEqual(len(starts), len(self.all_windows))

    def train(self, *flags):
        """Runs training and returns its log."""
        log = self.directory / "log"
        run(PROGRAM, "train", "--text", self.text, "--log", log, *FLAGS, *flags)
        return read_log(log)

    def initial_model(self, family="llama", **fields):
        model = random_model(family, 7, vocab_size=256, **fields)
        model.save_pretrained(self.directory / "initial")
        return model

    def check_curve(self, theirs, *flags):
        """Checks that training from the same weights gives `theirs`, a reference_curve."""
        ours = self.train("--init", self.directory / "initial", "--steps", STEPS, *flags)
        self.assertEqual([line["step"] for line in ours], list(range(1, STEPS + 1)))
        for our, their in zip(ours, theirs):
            self.assertAlmostEqual(our["loss"], their["loss"], delta=TOLERANCE, msg=our)
            self.assertAlmostEqual(our["grad_norm"], their["grad_norm"], delta=TOLERANCE * their["grad_norm"], msg=our)
            self.assertAlmostEqual(our["lr"], their["lr"], delta=1e-9, msg=our)
        # The loss must fall and clipping must be active, otherwise equal curves prove little.
        self.assertLess(theirs[-1]["loss"], theirs[0]["loss"] - 1)
        self.assertGreater(theirs[0]["grad_norm"], 2 * CLIP)

    def loaded_there(self, directory):
        model, report = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(report[kind], kind)
        return model.eval()

    def check_checkpoint(self, saved):
        """Checks that a model trained on two ranks has the loss of shardwise's next step when transformers loads it."""
        horizon = ["--steps", STEPS + 1]
        self.train("--init", self.directory / "initial", "--tp", 2, *horizon, "--stop-after", STEPS, "--save", saved)
        next_step = self.train("--resume", saved, *horizon)[-1]
        model = self.loaded_there(saved / "latest")
        self.assertEqual(next_step["step"], STEPS + 1)
        with torch.no_grad():
            loss = loss_of(model, self.all_windows[STEPS * WINDOWS_PER_STEP:]).item()
        self.assertAlmostEqual(next_step["loss"], loss, delta=TOLERANCE)

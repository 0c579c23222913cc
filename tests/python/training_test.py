"""Training matches the curve of transformers under torch's AdamW, and transformers reads its checkpoints."""
import torch

from curves import STEPS, TOLERANCE, WARMUP, CurveTest, reference_curve


class TrainingTest(CurveTest):
    def check(self, *flags, **fields):
        model = self.initial_model(**fields)
        self.check_curve(reference_curve(model, self.all_windows, STEPS), *flags)

    def test_curve_of_one_rank(self):
        self.check("--tp", 1)

    def test_curve_of_two_ranks_with_sequence_parallelism(self):
        self.check("--tp", 2, attention_bias=True, mlp_bias=True)

    def test_curve_of_three_ranks_tied_without_sequence_parallelism(self):
        self.check("--tp", 3, "--no-sequence-parallel", tie_word_embeddings=True)

    def test_our_checkpoint_has_the_same_loss_there(self):
        for is_tied in (False, True):
            with self.subTest(is_tied=is_tied):
                self.initial_model(tie_word_embeddings=is_tied)
                self.check_checkpoint(self.directory / f"saved-{is_tied}")

    def test_our_bf16_checkpoint_loads_there(self):
        self.initial_model()
        self.train("--init", self.directory / "initial", "--dtype", "bf16", "--tp", 2, "--steps", WARMUP,
                   "--save", self.directory / "saved")
        model = self.loaded_there(self.directory / "saved/latest")
        self.assertEqual({parameter.dtype for parameter in model.parameters()}, {torch.bfloat16})
        ids = self.all_windows[:2, :-1]
        with torch.no_grad():
            expected = model.float()(input_ids=ids).logits
        for name, logits in self.our_logits(self.directory / "saved/latest", ids).items():
            self.assertLess(((logits - expected).abs().max() / expected.abs().max()).item(), TOLERANCE, name)

"""Ranks started by torchrun have the same losses as ranks started by the program."""
import sys

from parity import PROGRAM, ParityTest, read_log, run


class TorchrunTest(ParityTest):
    FLAGS = ["--seq-len", 32, "--batch-size", 2, "--steps", 3, "--tp", 2]

    def losses(self, *launcher):
        text, log = self.directory / "text", self.directory / "log"
        text.write_bytes(bytes(range(256)) * 8)
        run(*launcher, PROGRAM, "train", "--text", text, "--log", log, *self.FLAGS)
        return [record["loss"] for record in read_log(log)]

    def test_equals_ranks_started_by_the_program(self):
        # "--", because torchrun would parse --log as a prefix of one of its own flags.
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", 2, "--"]
        self.assertEqual(self.losses(*torchrun), self.losses())


"""The candidates of a benchmark: processes that run steps in turn, and the report of their times and ratios."""

import json
import os
import signal
import statistics
import subprocess
import sys

from figures import Ratio


class Ended(Exception):
    """A candidate ended before it was asked to."""


class Candidate:
    """The processes of one candidate; rank 0 reports the time. A `peer` may end early: the report then says how."""

    def __init__(self, name, command, ranks, threads, peer=False):
        self.name = name
        self.peer = peer
        self.end = None  # how it ended, if early
        self.seconds = []
        self.last = {}
        job = f"bench-{os.getpid()}-{name}"
        port = 20000 + (os.getpid() * 7 + len(name)) % 20000
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                           env=self.environment(rank, ranks, threads, job, port))
                          for rank in range(ranks)]

    @staticmethod
    def environment(rank, ranks, threads, job, port):
        shardwise = {"SHARDWISE_RANK": rank, "SHARDWISE_WORLD_SIZE": ranks, "SHARDWISE_JOB": job,
                     "SHARDWISE_THREADS": threads}
        torch = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                 "OMP_NUM_THREADS": threads}
        return os.environ | {key: str(value) for key, value in (shardwise | torch).items()}

    def run(self, steps):
        try:
            for process in self.processes:
                process.stdin.write(f"{steps}\n")
                process.stdin.flush()
        except BrokenPipeError:
            raise Ended from None
        answers = [process.stdout.readline() for process in self.processes]
        if not all(answers):
            raise Ended
        self.last = json.loads(answers[0])
        return self.last["seconds"] / steps

    def warm_up(self, steps):
        try:
            self.run(steps)
        except Ended:
            status = self.processes[0].wait(timeout=300)
            self.end = signal.strsignal(-status) if status < 0 else f"exit status {status}"
            if not self.peer:
                sys.exit(f"bench: {self.name} ended early: {self.end}")
            print(f"bench: {self.name} ended early: {self.end}", file=sys.stderr)

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(timeout=300)


def interleave(candidates, rounds, steps, warm_up=2):
    for candidate in candidates:
        candidate.warm_up(warm_up)
    candidates = [candidate for candidate in candidates if not candidate.end]
    for number in range(rounds):
        for candidate in candidates if number % 2 == 0 else reversed(candidates):
            candidate.seconds.append(candidate.run(steps))
        print(f"\rround {number + 1}/{rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for candidate in candidates:
        candidate.close()


def report(title, candidates, comparisons):
    lines = [f"### {title}", "", "| candidate | ms per step, median | best |", "|---|---|---|"]
    for c in candidates:
        if c.end:
            lines.append(f"| {c.name} | ended early: {c.end} | |")
            continue
        lines.append(f"| {c.name} | {statistics.median(c.seconds) * 1e3:.1f} | {min(c.seconds) * 1e3:.1f} |")
    lines += ["", "| ratio | median | quartiles | target | |", "|---|---|---|---|---|"]
    for text, slower, faster, target in comparisons:
        if slower.end or faster.end:
            lines.append(f"| {text} | — | | {f'{target:.2f}×' if target else '—'} | did not run |")
            continue
        ratio = Ratio(slower, faster)
        verdict = "" if target is None else ratio.verdict(target, f"missed by {target - ratio.median:.2f}")
        lines.append(f"| {text} | {ratio.text()} | {ratio.spread()} | {f'{target:.2f}×' if target else '—'} | {verdict} |")
    return "\n".join(lines) + "\n"

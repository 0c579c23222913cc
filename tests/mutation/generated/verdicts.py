"""Decides which test kills a mutant.

A status other than 0 kills nothing yet, for the namespaces, a skipped test and a busy machine have such ones too. A test kills
if it fails and passes alone without the mutant. If it hangs, is one that time decides, or if the program did not start, it must
also fail alone with the mutant.
"""
import re
import sys
from dataclasses import dataclass

BATCHES_S = [1, 5, 30, 120]  # so that most mutants end with the fast tests, and a program starts seldom
SKIPPED = 77  # tests/support/main.cpp
LONG_S = 1  # a test of this time may wait for something


@dataclass
class Test:
    room: str
    name: str
    seconds: float
    reaches: list


def limit_of(seconds):
    """A test that takes longer than this hangs."""
    return 20 + 10 * seconds


def batches_of(tests):
    """Splits tests into groups of one program that take about BATCHES_S, fastest first."""
    rest = sorted(tests, key=lambda test: test.seconds)
    for limit_s in [*BATCHES_S, float("inf")]:
        group, total = [], 0
        while rest and (not group or total + rest[0].seconds <= limit_s):
            group.append(rest.pop(0))
            total += group[-1].seconds
        for room in dict.fromkeys(test.room for test in group):
            yield [test for test in group if test.room == room]


def has_started(output):
    return "[ RUN      ]" in output


def last_test_of(output):
    """Returns the test that failed first, or that ran when the program ended, or None."""
    failed = re.findall(r"^\[  FAILED  \] ([^\s,]+)", output, re.MULTILINE)
    started = re.findall(r"^\[ RUN      \] (\S+)", output, re.MULTILINE)
    return next(iter(failed[:1] + started[-1:]), None)


def has_a_deadline(test, output):
    """True if the test printed a deadline (tests/support/deadline.h), or is long enough to wait for one."""
    own = output[output.rfind(f"[ RUN      ] {test.name}\n") :]
    return test.seconds >= LONG_S or "deadline: " in own


class Verdicts:
    """`programs` runs tests: run(room, names, limit_s, **environment) returns output and status (run)."""

    def __init__(self, programs):
        self.programs = programs
        self.alone = {}  # whether a test passes alone without a mutant

    def run(self, tests, number=None):
        names, limit_s = ":".join(test.name for test in tests), limit_of(sum(test.seconds for test in tests))
        environment = {} if number is None else {"SHARDWISE_MUTANT": str(number)}
        return self.programs.run(tests[0].room, names, limit_s, **environment)

    def passes_alone(self, test):
        key = test.room, test.name
        if key not in self.alone:
            output, status = self.run([test])
            if not has_started(output):
                sys.exit(f"run: {test.room}: must start in namespaces (needs unshare); got {status}: {output[-300:]}")
            self.alone[key] = status == 0
        return self.alone[key]

    def is_killed_by(self, test, output, status, number):
        if not self.passes_alone(test):
            return False
        if has_started(output) and status != "hangs" and not has_a_deadline(test, output):
            return True
        return self.run([test], number)[1] not in (0, SKIPPED)

    def killer_in(self, batch, number):
        """Returns the first test of the batch that kills the mutant and how it does, or None."""
        while batch:
            output, status = self.run(batch, number)
            if status in (0, SKIPPED):
                return None
            name = last_test_of(output)
            test = next((test for test in batch if test.name == name), batch[0])
            if self.is_killed_by(test, output, status, number):
                if not has_started(output):
                    return f"{test.room} does not start: {status}"
                return f"{test.room}.{name} " + {"hangs": "hangs", 1: "fails"}.get(status, f"ends with {status}")
            batch = [other for other in batch if other is not test]
        return None

    def of(self, tests, number):
        """Returns the room and test that kills mutant `number` and how it does, or None if no test does."""
        reaching = [test for test in tests if number in test.reaches]
        return next(filter(None, (self.killer_in(batch, number) for batch in batches_of(reaching))), None)

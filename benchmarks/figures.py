"""Measurements with one value per round, and ratios of two of them."""

import math
import statistics

MIN_ROUNDS_FOR_VERDICT = 5
MIN_ROUNDS_FOR_QUARTILES = 4
TOO_FEW = "too few rounds"


class Figure:
    end = None  # how its candidate ended, if early

    def __init__(self, name, seconds=None):
        self.name, self.seconds = name, seconds or []

    def median(self):
        return statistics.median(self.seconds)


class Ratio:
    """The sorted ratios slower/faster of all rounds.

    Drops rounds with a time of 0 or less, which net times can have. The median is NaN if no round is left. `digits` is the
    number of printed decimals.
    """

    def __init__(self, slower, faster, digits=2):
        self.digits = digits
        pairs = list(zip(slower.seconds, faster.seconds))
        self.rounds = sorted(a / b for a, b in pairs if a > 0 and b > 0)
        self.dropped = len(pairs) - len(self.rounds)
        self.median = statistics.median(self.rounds) if self.rounds else math.nan

    def format(self, ratio):
        return f"{ratio:.{self.digits}f}"

    def text(self):
        return f"{self.format(self.median)}×" if self.rounds else "—"

    def low(self):
        """Returns the lower quartile."""
        return self.rounds[len(self.rounds) // 4]

    def spread(self):
        """Returns the quartiles; for few rounds, minimum and maximum."""
        if not self.rounds:
            return "—"
        if len(self.rounds) < MIN_ROUNDS_FOR_QUARTILES:
            return f"{self.format(self.rounds[0])}–{self.format(self.rounds[-1])} (min–max)"
        return f"{self.format(self.low())}–{self.format(self.rounds[3 * len(self.rounds) // 4])}"

    def has_verdict(self):
        return len(self.rounds) >= MIN_ROUNDS_FOR_VERDICT

    def is_open(self):
        """Returns whether the median is at least 1 but the lower quartile is below 1."""
        return self.median >= 1 > self.low()

    def verdict(self, least, missed="**missed**"):
        if not self.has_verdict():
            return TOO_FEW
        if self.median < least:
            return missed
        return "open: lower quartile below 1" if self.is_open() else "met"

    def rounds_text(self):
        return f"{len(self.rounds)}" + (f", {self.dropped} dropped" if self.dropped else "")

"""One figure of every round, and how two compare."""

import math
import statistics

FEWEST_OF_A_VERDICT = 5  # rounds
FEWEST_OF_QUARTILES = 4
TOO_FEW = "too few rounds"


class Figure:
    def __init__(self, name, seconds=None):
        self.name, self.seconds = name, seconds or []

    def median(self):
        return statistics.median(self.seconds)


class Ratio:
    """Of every round slower/faster, in order.

    A round in which either took no time or less, as what is left of two times that are nearly the same may, says nothing
    of how many times: it is dropped. With none left the median is NaN. `digits` are shown behind the point.
    """

    def __init__(self, slower, faster, digits=2):
        self.digits = digits
        pairs = list(zip(slower.seconds, faster.seconds))
        self.rounds = sorted(a / b for a, b in pairs if a > 0 and b > 0)
        self.dropped = len(pairs) - len(self.rounds)
        self.median = statistics.median(self.rounds) if self.rounds else math.nan

    def told(self, ratio):
        return f"{ratio:.{self.digits}f}"

    def text(self):
        return f"{self.told(self.median)}×" if self.rounds else "—"

    def low(self):
        """The lower quartile."""
        return self.rounds[len(self.rounds) // 4]

    def spread(self):
        """Quartiles; of few rounds all that they came to."""
        if not self.rounds:
            return "—"
        if len(self.rounds) < FEWEST_OF_QUARTILES:
            return f"{self.told(self.rounds[0])}–{self.told(self.rounds[-1])} (min–max)"
        return f"{self.told(self.low())}–{self.told(self.rounds[3 * len(self.rounds) // 4])}"

    def has_verdict(self):
        return len(self.rounds) >= FEWEST_OF_A_VERDICT

    def is_open(self):
        """Slower by the median, but in a quarter of the rounds it was faster."""
        return self.median >= 1 > self.low()

    def verdict(self, least, missed="**missed**"):
        if not self.has_verdict():
            return TOO_FEW
        if self.median < least:
            return missed
        return "open: lower quartile below 1" if self.is_open() else "met"

    def rounds_text(self):
        return f"{len(self.rounds)}" + (f", {self.dropped} dropped" if self.dropped else "")

"""One figure of every round, and how two compare."""

import math
import statistics


class Figure:
    def __init__(self, name, seconds=None):
        self.name, self.seconds = name, seconds or []

    def median(self):
        return statistics.median(self.seconds)


class Ratio:
    """Of every round slower/faster, in order.

    A round in which either took no time or less, as what is left of two times that are nearly the same may, says nothing
    of how many times: it is dropped. With none left the median is NaN.
    """

    def __init__(self, slower, faster):
        pairs = list(zip(slower.seconds, faster.seconds))
        self.rounds = sorted(a / b for a, b in pairs if a > 0 and b > 0)
        self.dropped = len(pairs) - len(self.rounds)
        self.median = statistics.median(self.rounds) if self.rounds else math.nan

    def text(self):
        return f"{self.median:.2f}×" if self.rounds else "—"

    def spread(self):
        if not self.rounds:
            return "—"
        return f"{self.rounds[len(self.rounds) // 4]:.2f}–{self.rounds[3 * len(self.rounds) // 4]:.2f}"

    def rounds_text(self):
        return f"{len(self.rounds)}" + (f", {self.dropped} dropped" if self.dropped else "")

"""One figure of every round, and how two compare."""

import statistics


class Figure:
    def __init__(self, name, seconds=None):
        self.name, self.seconds = name, seconds or []

    def median(self):
        return statistics.median(self.seconds)


class Ratio:
    """Of every round slower/faster, in order."""

    def __init__(self, slower, faster):
        self.rounds = sorted(a / b for a, b in zip(slower.seconds, faster.seconds))
        self.median = statistics.median(self.rounds)
        self.low, self.high = self.rounds[len(self.rounds) // 4], self.rounds[3 * len(self.rounds) // 4]

    def spread(self):
        return f"{self.low:.2f}–{self.high:.2f}"

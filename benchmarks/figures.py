"""One figure of every round, and how two compare."""

import statistics


class Figure:
    def __init__(self, name, seconds=None):
        self.name, self.seconds = name, seconds or []

    def median(self):
        return statistics.median(self.seconds)


def ratio(slower, faster):
    """Median over rounds of slower/faster, with its quartiles."""
    ratios = sorted(a / b for a, b in zip(slower.seconds, faster.seconds))
    return statistics.median(ratios), ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]

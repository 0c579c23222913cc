"""Scales of charts: linear and logarithmic, with round ticks."""
import math


def ticks(low, high, count=5):
    """Returns about `count` round numbers within [low, high]."""
    step = 10 ** math.floor(math.log10((high - low) / count or 1))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def short(x):
    if x == 0:
        return "0"
    if not 1e-3 <= abs(x) < 1e6:
        return f"{x:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{x:,.10g}"


class Axis:
    """Maps [low, high] to [0, 1]; `ticks` are (value, label)."""

    def __init__(self, low, high, marks, is_log=False):
        self.is_log, self.ticks = is_log, marks
        self.low, self.high = self.scaled(low), self.scaled(high)

    def scaled(self, value):
        return math.log10(value) if self.is_log else value

    def at(self, value):
        return (self.scaled(value) - self.low) / (self.high - self.low)


def linear(low, high, count=5):
    return Axis(low, high, [(value, short(value)) for value in ticks(low, high, count)])


def from_zero(values):
    """Returns a linear axis from 0 to the round number above the values."""
    highest = max(values)
    step = ticks(0, highest)[1]
    return linear(0, step * math.ceil(highest / step + 1e-9))


def decades(values):
    """Returns a logarithmic axis with the powers of ten around the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    marks = [(10.0**power, f"{10**power:,}" if power >= 0 else short(10.0**power)) for power in range(low, high + 1)]
    return Axis(10.0**low, 10.0**high, marks, is_log=True)


def doubling(values, label=str):
    """Returns a logarithmic axis with a tick at each value."""
    return Axis(min(values) / 1.3, max(values) * 1.3, [(value, label(value)) for value in values], is_log=True)

"""The rounds of shardwise/cli/bench_rounds.cpp for contenders that are called from Python, and their document's points.

What is timed is a function of a number of steps that takes them all, so that the loop may be elsewhere than in Python.
"""

import statistics
import time

ROUND_US = 10e3
FEWEST_ROUNDS = 5


class Loop:
    def __init__(self, take, steps=1):
        self.take, self.steps, self.us = take, steps, []

    def time_us(self, barrier):
        barrier()
        begin = time.perf_counter()
        self.take(self.steps)
        return (time.perf_counter() - begin) * 1e6 / self.steps


def tried_us(loop, barrier, largest):
    """The least of three tries, so that one disturbance does not make the rounds short."""
    return min(largest([loop.time_us(barrier) for _ in range(3)]))


def calibrate(loop, barrier, largest):
    """Sets the steps of a round, the same on every rank; returns how long it will take."""
    loop.steps = 2
    loop.time_us(barrier)
    loop.steps = 1
    while (us := tried_us(loop, barrier, largest)) * loop.steps < ROUND_US / 4:
        loop.steps *= 4
    loop.steps = max(1, int(ROUND_US / us))
    return us * loop.steps


def spread(us):
    us = sorted(us)
    return {"median_us": statistics.median(us), "best_us": us[0], "lower_quartile_us": us[len(us) // 4],
            "upper_quartile_us": us[3 * len(us) // 4]}


def measure(size, mode, takes, seconds, barrier, largest):
    """One point. `takes`: of a number of steps that call; that write the input and call; that only write."""
    call, write_and_call, write = takes
    calling = Loop(call if mode == "warm" else write_and_call)
    round_us = calibrate(calling, barrier, largest)
    loops = [calling] if mode == "warm" else [calling, Loop(write, calling.steps)]
    round_us += ROUND_US / 2 * (len(loops) - 1)
    rounds = int(max(seconds * 1e6 / round_us, FEWEST_ROUNDS))
    for number in range(rounds):
        for loop in loops if number % 2 == 0 else reversed(loops):
            loop.us.append(loop.time_us(barrier))
    raw, *writing = [largest(loop.us) for loop in loops]
    net = [a - b for a, b in zip(raw, writing[0])] if writing else raw
    return {"bytes": size, "mode": mode, "call": "all_reduce", "rounds": rounds, "calls_per_round": calling.steps,
            "raw": spread(raw), "net": spread(net)}

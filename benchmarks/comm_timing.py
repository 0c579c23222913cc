"""The timing method of shardwise/bench/timing.cpp for candidates that are called from Python.

A timed function runs a given number of steps, so that its loop need not be in Python.
"""

import statistics
import time

REPETITION_US = 10e3
MIN_REPETITIONS = 5
REHEATED_US = 100e3


class Loop:
    def __init__(self, run, steps=1, begins_untimed=False):
        self.run, self.steps, self.begins_untimed, self.us = run, steps, begins_untimed, []

    def time_us(self, barrier):
        if self.begins_untimed:
            self.run(1)
        barrier()
        begin = time.perf_counter()
        self.run(self.steps)
        return (time.perf_counter() - begin) * 1e6 / self.steps


def estimate_us(loop, barrier, max_over_ranks):
    """Returns the smallest of three measurements, so that one disturbance does not make the repetitions too short."""
    return min(max_over_ranks([loop.time_us(barrier) for _ in range(3)]))


def calibrate(loop, repetition_us, barrier, max_over_ranks):
    """Sets the steps per repetition of about `repetition_us`, equal on every rank; returns its estimated time."""
    loop.steps = 2
    loop.time_us(barrier)
    loop.steps = 1
    while (us := estimate_us(loop, barrier, max_over_ranks)) * loop.steps < repetition_us / 4:
        loop.steps *= 4
    loop.steps = max(1, int(repetition_us / us))
    loop.begins_untimed = us < REHEATED_US
    return us * (loop.steps + loop.begins_untimed)


def spread(us):
    us = sorted(us)
    return {"median_us": statistics.median(us), "best_us": us[0], "lower_quartile_us": us[len(us) // 4],
            "upper_quartile_us": us[3 * len(us) // 4]}


def measure(size, mode, loops, seconds, barrier, max_over_ranks):
    """Measures one point. `loops` are three functions of a number of steps: call, write the input and call, write."""
    call, write_and_call, write = loops
    calling = Loop(call if mode == "warm" else write_and_call)
    of_loop_us = min(REPETITION_US, seconds * 1e6 / MIN_REPETITIONS)
    repetition_us = calibrate(calling, of_loop_us, barrier, max_over_ranks)
    loops = [calling] if mode == "warm" else [calling, Loop(write, calling.steps, calling.begins_untimed)]
    repetition_us += of_loop_us / 2 * (len(loops) - 1)
    repetitions = int(max(seconds * 1e6 / repetition_us, MIN_REPETITIONS))
    for number in range(repetitions):
        for loop in loops if number % 2 == 0 else reversed(loops):
            loop.us.append(loop.time_us(barrier))
    raw, *writing = [max_over_ranks(loop.us) for loop in loops]
    net = [a - b for a, b in zip(raw, writing[0])] if writing else raw
    return {"bytes": size, "mode": mode, "call": "all_reduce", "repetitions": repetitions,
            "calls_per_repetition": calling.steps, "raw": spread(raw), "net": spread(net)}

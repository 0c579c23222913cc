"""Deadlines of fault handling, as in tests/support/deadline.h: SHARDWISE_TEST_TIME_SCALE, a factor of at least 1, lengthens all."""
import contextlib
import os
import time

SOON_S = 1.0  # the time within which every rank must get an error that needs no timeout


def scaled_s(deadline_s):
    """Returns the deadline on this machine."""
    scale = float(os.environ.get("SHARDWISE_TEST_TIME_SCALE", 1))
    if not scale >= 1:
        raise ValueError(f"SHARDWISE_TEST_TIME_SCALE must be a factor of at least 1; got {scale}")
    return deadline_s * scale


@contextlib.contextmanager
def within(test, deadline_s):
    """Expects the body to end before the deadline; prints how long it took."""
    begin = time.monotonic()
    yield
    took_s, limit_s = time.monotonic() - begin, scaled_s(deadline_s)
    print(f"deadline: {took_s:.3f} s of {limit_s:g} s, {test.id()}", flush=True)
    test.assertLess(took_s, limit_s)

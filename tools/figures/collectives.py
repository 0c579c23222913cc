"""all_reduce step by step on four ranks, simulated on small numbers: as a ring, and as two-shot in shared memory."""
from diagram import Diagram
from scene import Scene

RANKS = 4
CELL, PITCH = 6, 29  # columns of a cell, and from state to state
NUMBERS = [[RANKS * rank + chunk + 1 for chunk in range(RANKS)] for rank in range(RANKS)]
SUMS = [sum(column) for column in zip(*NUMBERS)]


class State:
    """The chunks of every rank after a step; `touched`: those that the step wrote."""

    def __init__(self, title, note, values, touched=()):
        self.title, self.note, self.touched = title, note, set(touched)
        self.values = [list(row) for row in values]

    def css(self, rank, chunk):
        if self.values[rank][chunk] == SUMS[chunk]:
            return "t2"
        return "t1" if (rank, chunk) in self.touched else "box"


def ring():
    """Yields the states, and returns the number of chunks that each rank sends."""
    values, sent = [list(row) for row in NUMBERS], [0] * RANKS
    yield State("start", "", values), sent
    for step in range(2 * (RANKS - 1)):
        adds = step < RANKS - 1
        # Rank r sends the chunk that it received in the step before, at first chunk r.
        chunks = [(rank - step + (0 if adds else RANKS)) % RANKS for rank in range(RANKS)]
        moved = [values[rank][chunk] for rank, chunk in enumerate(chunks)]
        touched = []
        for rank, chunk in enumerate(chunks):
            peer = (rank + 1) % RANKS
            values[peer][chunk] = moved[rank] + (values[peer][chunk] if adds else 0)
            touched.append((peer, chunk))
            sent[rank] += 1
        yield State(f"step {step + 1}", "adds what it receives" if adds else "stores what it receives", values, touched), sent


def two_shot():
    """Yields the states and the number of chunks that each rank has read and written of others."""
    values, moved = [list(row) for row in NUMBERS], [0] * RANKS
    yield State("start", "", values), moved
    for rank in range(RANKS):  # between the barriers, all ranks at once
        values[rank][rank] = sum(NUMBERS[peer][rank] for peer in range(RANKS))  # in rank order
        moved[rank] += RANKS - 1
    yield State("after arrival barrier", "rank r sums chunk r of all", values, [(r, r) for r in range(RANKS)]), moved
    for rank in range(RANKS):
        for peer in range(RANKS):
            values[peer][rank] = values[rank][rank]
            moved[rank] += peer != rank
    yield State("before departure barrier", "rank r writes it to all", values), moved


def matrix(scene, x, y, state):
    scene.title(x + 4, y, state.title)
    if state.note:
        scene.text(x + 4, y + 1, state.note, css="soft")
    for chunk in range(RANKS):
        scene.text(x + 4 + (CELL - 1) * chunk + CELL // 2, y + 2, f"c{chunk}", "middle", "soft")
    for rank, row in enumerate(state.values):
        scene.text(x, y + 4 + 2 * rank, f"r{rank}", css="soft")
        for chunk, value in enumerate(row):
            scene.box(x + 4 + (CELL - 1) * chunk, y + 3 + 2 * rank, CELL, 3, [str(value)], state.css(rank, chunk))


def states_of(algorithm):
    """Returns the states, and the chunks that a rank moves. Raises an AssertionError if a rank lacks a sum."""
    states = list(algorithm())
    last, moved = states[-1]
    assert last.values == [SUMS] * RANKS, f"every rank must have the sums {SUMS}; got {last.values}"
    assert len(set(moved)) == 1, f"every rank must move as much; got {moved}"
    return [state for state, _ in states], moved[0]


def draw_ring(name):
    states, sent = states_of(ring)
    scene = Scene()
    scene.title(0, 0, f"Ring all_reduce of {RANKS} ranks: each sends to the next one, a chunk in every step")
    scene.text(0, 1, f"Steps 1 to {RANKS - 1} are a reduce_scatter, the others an all_gather.", css="soft")
    scene.text(0, 2, "Orange: a partial sum that was just received; green: a complete sum.", css="soft")
    for i, state in enumerate(states):
        matrix(scene, PITCH * (i % 4), 4 + 14 * (i // 4), state)
    scene.text(0, 32, f"Each rank sends {sent} chunks, {sent / RANKS:g} times the message, in {len(states) - 1} steps.")
    return Diagram(name, "Ring all_reduce, step by step", f"Four ranks with four chunks each. In {RANKS - 1} steps every rank adds a "
                   f"chunk that it receives, until rank r has the sum of one chunk; in as many more the sums go around. The sums are {SUMS}.", scene)


def draw_two_shot(name):
    states, moved = states_of(two_shot)
    scene = Scene()
    scene.title(0, 0, f"Two-shot all_reduce of {RANKS} ranks in shared memory")
    scene.text(0, 1, "Ranks read and write each other's tensors in place. Green: a complete sum.", css="soft")
    for i, state in enumerate(states):
        matrix(scene, PITCH * i, 3, state)
    scene.text(0, 16, f"Each rank reads {moved // 2} chunks of others and writes {moved // 2} to others: {moved / RANKS:g} times the "
                      "message, as in the ring, with two waits.")
    return Diagram(name, "Two-shot all_reduce, step by step", "Four ranks with four chunks each. After the arrival barrier rank r sums chunk r "
                   f"of all ranks in rank order; then it writes the sum to all ranks. The sums are {SUMS}.", scene)

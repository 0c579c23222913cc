"""python3 tools/figures/record_timeline.py TRACE.json COMMAND >docs/figures/data/timeline.json

Takes from a Chrome trace of `shardwise train --profile` the step that took the least time: for each rank its events as
[operation, part, start, duration, waiting], in µs from the start of the step.
"""
import json
import platform
import sys
from datetime import date
from pathlib import Path

NAMES = {"none": "optimizer"}  # events outside the model


def steps_of(events):
    """Returns rank -> its steps in order."""
    steps = {}
    for event in events:
        if event["ph"] == "X" and event["name"] == "step":
            steps.setdefault(event["pid"], []).append(event)
    return {rank: sorted(found, key=lambda e: e["ts"]) for rank, found in steps.items()}


def fastest(steps):
    """Returns the index of the step whose slowest rank is the fastest."""
    count = min(map(len, steps.values()))
    return min(range(count), key=lambda i: max(found[i]["dur"] for found in steps.values()))


def events_in(events, rank, step, start):
    for event in sorted((e for e in events if e["ph"] == "X" and e["pid"] == rank), key=lambda e: e["ts"]):
        if event["name"] != "step" and step["ts"] <= event["ts"] <= step["ts"] + step["dur"]:
            part = NAMES.get(event["cat"], event["cat"])
            yield [event["name"], part, round(event["ts"] - start, 1), round(event["dur"], 1), round(event["args"]["waiting_us"], 1)]


def processor():
    lines = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model name", "cpu family"))]
    found = dict(map(str.strip, line.split(":", 1)) for line in lines)
    return f"{found.get('model name', platform.machine())}, family {found.get('cpu family', '?')}"


def record(trace, command):
    events = trace["traceEvents"]
    steps = steps_of(events)
    chosen = {rank: found[fastest(steps)] for rank, found in steps.items()}
    start = min(step["ts"] for step in chosen.values())
    ranks = [{"start": round(step["ts"] - start, 1), "duration": round(step["dur"], 1),
              "events": list(events_in(events, rank, step, start))} for rank, step in sorted(chosen.items())]
    return {"date": str(date.today()), "cpu": processor(), "command": command, "ranks": ranks}


def main():
    trace, command = sys.argv[1:]
    found = record(json.loads(Path(trace).read_text()), command)
    ranks = found.pop("ranks")
    lines = [json.dumps({key: value for key, value in found.items()})[:-1] + ', "ranks": [']
    for i, rank in enumerate(ranks):
        events = ",\n  ".join(map(json.dumps, rank.pop("events")))
        lines.append(json.dumps(rank)[:-1] + f', "events": [\n  {events}]}}' + ("," if i + 1 < len(ranks) else ""))
    print("\n".join([*lines, "]}"]))


if __name__ == "__main__":
    main()

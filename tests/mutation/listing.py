"""Reads faults.md: each fault with what it does, the test that notices it, and whether the doctor sees it."""
import re
from dataclasses import dataclass
from pathlib import Path

LISTING = Path(__file__).resolve().parent / "faults.md"
ROW = re.compile(r"^\| `(\w+)` \| .+ \| `(\w+)\.(\S+)` \|$")
ROW_OF_TWO = re.compile(r"^\| `(\w+)` \| [^|]+ \|$")
UNSEEN_HEADING, CHANCE_HEADING = "What the doctor cannot see, and why", "What the doctor sees by chance"


@dataclass
class Fault:
    name: str
    kind: str  # the heading that it stands under
    room: str
    test: str


def listed_faults():
    """Returns the rows that name a test."""
    found, kind = [], ""
    for line in LISTING.read_text().splitlines():
        if line.startswith("## "):
            kind = line[3:]
        if row := ROW.match(line):
            found.append(Fault(row[1], kind, row[2], row[3]))
    return found


def unseen_by_doctor():
    return names_under(UNSEEN_HEADING)


def seen_by_chance():
    return names_under(CHANCE_HEADING)


def names_under(heading):
    """Returns the faults of a table of two columns."""
    section = LISTING.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {row[1] for line in section.splitlines() if (row := ROW_OF_TWO.match(line))}

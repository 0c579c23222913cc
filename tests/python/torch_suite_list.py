"""Reads torch_suite_skips.txt: which of torch's tests do not run, and why."""
from pathlib import Path

LIST = Path(__file__).with_name("torch_suite_skips.txt")
FOUR_RANKS = ("Test requires world size of 4", "Test requires an exact world size of 4")  # torch's reasons on 3 ranks


def read_list():
    """Returns {section: {name: reason}}, and what the errors of an excluded reason's tests contain, {reason: regular
    expression}. Sections, reasons and `fails with: REGEX` are lines; names are indented."""
    sections, texts, section, reason = {}, {}, "", ""
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            sections[section] = {}
        elif line.startswith("fails with: "):
            texts[reason] = line.removeprefix("fails with: ")
        elif line.startswith(" "):
            sections[section].update(dict.fromkeys(line.split(), reason))
        elif line and not line.startswith("#"):
            reason = line
    return sections, texts


_SECTIONS, FAILS_WITH = read_list()
SKIPPED = _SECTIONS["skipped by torch"]
SKIPPED_ON_FOUR = _SECTIONS["skipped by torch on 4 ranks too"]
EXCLUDED = _SECTIONS["excluded"]
ON_FOUR = {name: reason for name, reason in SKIPPED.items() if reason in FOUR_RANKS}

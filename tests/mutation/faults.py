"""Reads the deliberate faults, faults/*.diff, and applies them to copies of the product's sources.

A file of faults is a unified diff without line numbers:

    --- shardwise/parallel/row_product.cpp
    @@ drop_f_star
    -  step.group.all_reduce_(y);
    +  if (!FAULT) step.group.all_reduce_(y);
       return y;

`@@` begins a hunk and names its fault; a fault may have several hunks. The lines that begin with a blank or `-` must occur in
the source exactly once, consecutively; those with `-` are replaced by those with `+`. FAULT is true while the fault is
enabled, so one copy contains all faults. Only the tokens in which `-` and `+` differ are replaced, so several faults can
change one line if they change different tokens.
"""
import re
from dataclasses import dataclass, field
from itertools import groupby
from os.path import commonprefix
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TEXTS = sorted((Path(__file__).resolve().parent / "faults").glob("*.diff"))
SWITCH = re.compile(r"\bFAULT\b")
TOKEN = re.compile(r"\w+|\W")
HEADER = '#include "tests/mutation/fault_is_on.h"\n'


class FaultError(Exception):
    """A fault that cannot be applied to its file."""


@dataclass
class Hunk:
    fault: str
    file: str  # from the root of the repository
    lines: list = field(default_factory=list)

    def fail(self, what):
        raise FaultError(f"{self.fault}: {what}; {self.file}:\n" + "".join(f"{line}\n" for line in self.lines).rstrip("\n"))


@dataclass
class Edit:
    """Replaces [begin, end) of a file."""
    begin: int
    end: int
    text: str
    hunk: Hunk


def hunks_of(text):
    """Returns the hunks of one file of faults."""
    hunks, file = [], None
    for line in text.splitlines():
        if line.startswith("--- "):
            file = line[4:]
        elif line.startswith("@@ "):
            hunks.append(Hunk(line[3:], file))
        elif hunks:
            hunks[-1].lines.append(line)
    for hunk in hunks:
        while hunk.lines and not hunk.lines[-1]:
            hunk.lines.pop()
    return hunks


def all_hunks():
    return [hunk for text in TEXTS for hunk in hunks_of(text.read_text())]


def hunks_by_file(hunks):
    files = {}
    for hunk in hunks:
        files.setdefault(hunk.file, []).append(hunk)
    return files


def check_form(hunk):
    if not re.fullmatch(r"\w+", hunk.fault) or not hunk.file:
        hunk.fail("must begin with @@ and the fault's name, below the --- of its file")
    if not any(SWITCH.search(line) for line in hunk.lines if line.startswith("+")):
        hunk.fail("must add a line with FAULT")
    for line in hunk.lines:
        if line[:1] not in ("", " ", "-", "+"):
            hunk.fail(f"its lines must begin with a blank, - or +; got {line}")


def begin_of(hunk, source):
    """Returns the offset in the source at which the hunk begins."""
    anchor = "\n" + without_marks(hunk.lines, " ", "-")
    count = len(re.findall(f"(?={re.escape(anchor)})", "\n" + source))
    if count != 1:
        hunk.fail(f"its lines must occur exactly once; got {count}")
    return ("\n" + source).index(anchor)


def common_ends(old, new):
    """Returns the lengths of the longest common prefix and suffix of two texts, in complete tokens."""
    old_tokens, new_tokens = TOKEN.findall(old), TOKEN.findall(new)
    prefix = len(commonprefix([old_tokens, new_tokens]))
    rest = [old_tokens[prefix:][::-1], new_tokens[prefix:][::-1]]
    suffix = len(commonprefix(rest))
    return len("".join(old_tokens[:prefix])), len("".join(rest[0][:suffix]))


def runs_of(hunk):
    """Yields (changes, lines) for each run of changed or of unchanged lines."""
    return ((changes, list(lines)) for changes, lines in groupby(hunk.lines, lambda line: line.startswith(("-", "+"))))


def without_marks(lines, *marks):
    """Returns the text of the lines that begin with one of `marks`; an empty line is a blank one whose mark was trimmed."""
    return "".join(f"{line[1:]}\n" for line in lines if (line[:1] or " ") in marks)


def edits_of(hunk, source):
    """Returns an Edit for each run of changed lines."""
    check_form(hunk)
    at, edits = begin_of(hunk, source), []
    for changes, run in runs_of(hunk):
        old, new = without_marks(run, " ", "-"), without_marks(run, "+")
        if changes:
            prefix, suffix = common_ends(old, new)
            edits.append(Edit(at + prefix, at + len(old) - suffix, new[prefix : len(new) - suffix], hunk))
        at += len(old)
    return edits


def switched(edit):
    """Returns the edit's text with the switch of its fault."""
    return SWITCH.sub(f'fault_is_on("{edit.hunk.fault}")', edit.text)


def with_faults(source, hunks):
    """Returns the source with all faults of `hunks`, each disabled until $SHARDWISE_FAULT names it."""
    edits = sorted((edit for hunk in hunks for edit in edits_of(hunk, source)), key=lambda edit: (edit.begin, edit.end))
    text, at = HEADER, 0
    for edit in edits:
        if edit.begin < at:
            edit.hunk.fail("must not change what another fault changes")
        text += source[at : edit.begin] + switched(edit)
        at = edit.end
    return text + source[at:]

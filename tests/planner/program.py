"""The program whose plans the page must show, and requests in both of their forms."""
import os
import pathlib
import subprocess

BUILD = pathlib.Path(os.environ["SHARDWISE_BUILD"])
PROGRAM = BUILD / "shardwise"


def arguments(flags):
    """Returns the command line of a request's flags."""
    words = []
    for name, value in flags.items():
        words += ["--" + name] if value is True else ["--" + name, *(value if isinstance(value, list) else [value])]
    return words


def plan(flags, *more, directory=None):
    """Returns what `shardwise plan` prints: to standard output, or if that is nothing, its error without the program's name."""
    run = subprocess.run([PROGRAM, "plan", *arguments(flags), *more], capture_output=True, text=True, cwd=directory, check=False)
    return run.stdout or run.stderr.removeprefix("shardwise: ")

"""Runs the program `shardwise` and returns what it prints with --json."""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise._messages import Messages

_ENDS_WITHIN_S = 10.0  # after Ctrl-C; the program first removes files that it has not finished
_USAGE_ERROR = 2
# By these the program would take itself for a rank of the job that this process is a rank of; it starts its own.
_RANK_VARIABLES = {"SHARDWISE_RANK", "RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID",
                   "SLURM_STEP_NUM_TASKS"}

_OURS = Path(__file__).parent / "bin/shardwise"  # of a wheel

Flag = str | int | float | bool | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, Any] | None


class Error(RuntimeError):
    """The program failed at run time, or there is none. The text is the program's own line."""

    __module__ = "shardwise"  # as tracebacks name it


def find() -> str:
    """Returns the program's path: of SHARDWISE_PROGRAM, of this package or the build tree that it stands in, or on PATH."""
    given = os.environ.get("SHARDWISE_PROGRAM")
    tree = Path(__file__).parents[1]  # build/python
    ours = str(tree.parent / "shardwise" if tree.name == "python" else _OURS)
    found = shutil.which(given) if given else shutil.which(ours) or shutil.which("shardwise")
    if found is None:
        raise Error("shardwise: the program must be in this package, on PATH or named by SHARDWISE_PROGRAM; got "
                    f"{given or 'none'}; {_why_none()}`make install PREFIX=DIR` in shardwise's sources installs it as "
                    "DIR/bin/shardwise")
    return found


def _why_none() -> str:
    """Returns why the wheel was built without the program, as cmake/wheel.cmake has written it."""
    try:
        return f"the package has none, because {_OURS.with_name('no_program.txt').read_text().strip()}; "
    except OSError:  # no wheel
        return ""


def run(command: str, flags: Mapping[str, Flag], arguments: Sequence[str | os.PathLike[str]] = (),
        exit_codes: Sequence[int] = (0,)) -> Any:
    """Runs `shardwise COMMAND` and returns the JSON that it prints.

    A flag that is None or False is left out, and a dict is written to a file that the flag then names. With one of
    `exit_codes` the program has printed a result.

    Errors: ValueError for a usage error, Error for every other.
    """
    program = find()
    with tempfile.TemporaryDirectory(prefix="shardwise-") as directory:
        line = [program, command, "--json", *_flags(flags, Path(directory)), *map(_argument, arguments)]
        exit_code, out, messages = _run(line)
        without_directory = f"{directory}/"
        out, errors = out.replace(without_directory, ""), messages.errors().replace(without_directory, "")
    for warning in messages.unseen_warnings():
        warnings.warn(warning.replace(without_directory, ""), stacklevel=3)
    if exit_code in exit_codes and out:
        return json.loads(out)
    if exit_code == _USAGE_ERROR and errors:
        raise ValueError(errors)
    raise Error(errors or f"shardwise: {command} must end with exit code 0; {program} ended with {exit_code}")


def _flags(flags: Mapping[str, Flag], directory: Path) -> list[str]:
    texts: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            texts.append(flag)
        elif isinstance(value, Mapping):
            texts.append(f"{flag}={_file_of(name, value, directory)}")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            texts += [part for one in value for part in _valued(flag, one)]
        elif value is not None and value is not False:
            texts += _valued(flag, value)
    return texts


def _valued(flag: str, value: Any) -> list[str]:
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return [f"{flag}={text}"] if text else [flag, text]  # after "--flag=" the program would read the next word


def _file_of(name: str, value: Mapping[str, Any], directory: Path) -> Path:
    path = directory / ("config.json" if name == "model" else f"{name}.json")
    path.write_text(json.dumps(dict(value), allow_nan=False))
    return path


def _argument(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text


def _run(line: Sequence[str]) -> tuple[int, str, Messages]:
    """Returns the exit code, standard output, and the messages of standard error."""
    messages = Messages(sys.stderr)
    process = _start(line, messages)
    assert process.stdout is not None
    try:
        out = process.stdout.read()
        return process.wait(), out.decode(), messages.finish()
    except BaseException as error:
        _end(process, is_interrupt=isinstance(error, KeyboardInterrupt))
        messages.finish()
        raise
    finally:
        process.stdout.close()


def _start(line: Sequence[str], messages: Messages) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(line, env=_environment(line[0]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=messages.writer)
    except OSError as error:
        raise Error(f"shardwise: {line[0]} must be a program that this system runs; got {error.strerror}") from None
    finally:
        messages.start()


def _environment(program: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    torch = importlib.util.find_spec("torch") if program == str(_OURS) else None  # is not imported
    if torch and torch.submodule_search_locations:  # it may be in another directory of packages than shardwise
        paths = [f"{torch.submodule_search_locations[0]}/lib", environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
    return environment


def _end(process: subprocess.Popen[bytes], is_interrupt: bool) -> None:
    """Ends the program as Ctrl-C does. A terminal has sent it the signal already, and a second one would stop its cleanup."""
    try:
        if not (is_interrupt and _is_in_foreground()):
            process.send_signal(signal.SIGINT)
        process.wait(_ENDS_WITHIN_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


def _is_in_foreground() -> bool:
    """Whether a terminal sends its Ctrl-C to this process and the program."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # no terminal, as in a notebook
        return False

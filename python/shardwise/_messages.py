"""The program's standard error: what a terminal shows at once, and the lines that become exceptions and warnings."""
from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import termios
import threading
import tty
from typing import TextIO

_ERROR = re.compile(r"(?:\[rank \d+\] )?shardwise: ")
_LONGEST_MARK = len("[rank 65536] shardwise: ")  # a line that has begun may become an error up to here
_WARNING = "warning: "
_END = re.compile(r"\n|\x1b\[2K")  # of a line: what follows a cleared progress line is another one


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty() and os.isatty(stream.fileno())
    except (OSError, ValueError):  # a closed stream, or one without a descriptor
        return False


class Messages:
    """Reads what the program writes to `writer`.

    If `stream` is a terminal, so is `writer`, and progress, logs and warnings appear as they are written. Errors never do,
    because they are raised.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if _is_terminal(stream) else None
        self._reader, self.writer = self._terminal(self._stream) if self._stream else os.pipe()
        self._lines = [""]
        self._shown = 0  # characters of the last line
        self._thread = threading.Thread(target=self._read, daemon=True)

    @staticmethod
    def _terminal(stream: TextIO) -> tuple[int, int]:
        reader, writer = pty.openpty()
        tty.setraw(writer)  # `stream` itself converts line ends
        size = fcntl.ioctl(stream.fileno(), termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(writer, termios.TIOCSWINSZ, size)  # where progress lines are cut
        return reader, writer

    def start(self) -> None:
        """Begins to read, once the program has its copy of `writer`."""
        os.close(self.writer)
        self._thread.start()

    def finish(self) -> Messages:
        """Waits until the program has written everything."""
        self._thread.join()
        os.close(self._reader)
        return self

    def errors(self) -> str:
        """Returns the errors, one a line, without the program's name."""
        lines = [line for line in self._lines if _ERROR.match(line)]
        return "".join(line.replace("shardwise: ", "", 1) for line in lines).removesuffix("\n")

    def unseen_warnings(self) -> list[str]:
        """Returns the warnings that no terminal has shown."""
        warnings = [line.strip().removeprefix(_WARNING) for line in self._lines if line.startswith(_WARNING)]
        return [] if self._stream else warnings

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while bytes_ := self._next():
            self._add(decoder.decode(bytes_))

    def _next(self) -> bytes:
        try:
            return os.read(self._reader, 65536)
        except OSError:  # the end of a terminal, once the program has closed it
            return b""

    def _add(self, text: str) -> None:
        self._lines[-1] += text
        while end := _END.search(self._lines[-1]):
            rest = self._lines[-1][end.end():]
            self._lines[-1] = self._lines[-1][:end.end()]
            self._show(is_complete=True)
            self._lines.append(rest)
            self._shown = 0
        self._show(is_complete=False)

    def _show(self, is_complete: bool) -> None:
        """Shows what is new of the last line, unless it is or may become an error."""
        line = self._lines[-1]
        may_become_error = not is_complete and len(line) < _LONGEST_MARK and line.startswith(("s", "["))
        if self._stream is None or (not self._shown and (_ERROR.match(line) or may_become_error)):
            return
        self._stream.write(line[self._shown:])
        self._stream.flush()
        self._shown = len(line)

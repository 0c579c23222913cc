"""Programs and libraries of the candidates of `run.py comm`, compiled into build/benchmarks on first use."""

import shutil
import subprocess

from machine import BUILD, ROOT

TIMING = ROOT / "shardwise" / "bench"
BASE = "tools/setup installs it"


class Missing(Exception):
    """The reason why a candidate cannot run here."""


class Compiled:
    """A source of this directory, compiled with the timing sources of shardwise/bench if any of them is newer."""

    def __init__(self, source, name, command):
        self.path, self.command = BUILD / "benchmarks" / name, command
        self.sources = [ROOT / "benchmarks" / source, TIMING / "timing.cpp",
                        ROOT / "shardwise" / "base" / "cpu_name.cpp"]

    def make(self):
        changed = max(file.stat().st_mtime for file in [*self.sources, TIMING / "timing.h"])
        if self.path.exists() and self.path.stat().st_mtime > changed:
            return
        if shutil.which(self.command[0]) is None:
            raise Missing(f"no {self.command[0]}; {BASE}")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*self.command, "-O2", "-std=c++20", f"-I{ROOT}", *self.sources, "-o", self.path], check=True)

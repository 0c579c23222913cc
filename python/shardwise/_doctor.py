"""The function `doctor`: is a difference between TP=1 and TP=N rounding or a bug, and where?"""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise import _records
from shardwise._program import run

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Deviation:
    """The result of a layer that is closest to its bound, or beyond it. A number that is NaN or infinite is None."""

    tensor: str
    difference: float | None
    """The largest, from the unsharded model in fp64."""
    reference_max: float | None
    bound: float | None
    within_bound: bool


@dataclass(frozen=True, slots=True)
class LayerDeviations:
    """The largest deviations of a layer."""

    module: str
    activations: Deviation | None
    gradients: Deviation | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run of the sharded model, compared with the unsharded one."""

    test_case: str
    run_config: str
    dtype: str
    grad_norm: float | None
    passed: bool
    layers: tuple[LayerDeviations, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A property that holds or not."""

    name: str
    scope: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """The calls and bytes of a collective that a rank has counted, and those of the formulas."""

    test_case: str
    run_config: str
    dtype: str
    rank: int
    phase: str
    collective: str
    calls: int
    bytes: int
    expected_calls: int
    expected_bytes: int


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What the doctor has found."""

    model: str
    tp: int
    dtype: str
    seq_len: int
    verdict: Literal["rounding", "bug"]
    bug: str | None
    """What differs first, or None."""
    comparisons: tuple[Comparison, ...]
    checks: tuple[Check, ...]
    traffic: tuple[Traffic, ...]


def doctor(model: Path, *, tp: int, tokenizer: Path | None = None, dtype: str | None = None, load_format: str | None = None,
           quantize: str | None = None, group_size: int | None = None, head: str | None = None,
           activations: str | None = None, text: Path | Sequence[Path] | None = None, seq_len: int | None = None,
           seed: int | None = None, timeout: float | None = None, device: str | None = None) -> DoctorReport:
    """Runs a model at TP=1 and on tp ranks, forward and backward, and says whether the differences are rounding or a bug.

    Then trains a small model of the same family, saves and resumes it. A bug is a result, not an exception: `verdict` and
    `bug` name it. Arguments are those of `shardwise doctor`; its help lists their values, and what None means.

    Errors: ValueError with the program's line for a wrong argument or model; Error if the program fails or is missing.
    """
    flags = {"model": model, "tp": tp, "tokenizer": tokenizer, "dtype": dtype, "load_format": load_format,
             "quantize": quantize, "group_size": group_size, "head": head, "activations": activations, "text": text,
             "seq_len": seq_len, "seed": seed, "timeout": timeout, "device": device}
    return _records.read(DoctorReport, run("doctor", flags, exit_codes=(0, 3)), "doctor")

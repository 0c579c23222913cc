"""The functions `inspect`, `shard`, `merge` and `quantize`: what a model directory has, and the same model in other files."""
from __future__ import annotations

import os
from dataclasses import dataclass

from shardwise import _records
from shardwise._program import run

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class InspectedTensor:
    """A tensor of a checkpoint, and its shards."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    rule: str
    """How it is sharded, such as "vocab, dim 0"; "not read" for one that no rank reads."""
    rank_shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The tensors of a checkpoint."""

    model_type: str
    quantization: str | None
    tp: int
    parameters: int
    bytes: int
    """Of the full weights."""
    rank_bytes: tuple[int, ...]
    bytes_read: int
    """Headers and index."""
    tensors: tuple[InspectedTensor, ...]


@dataclass(frozen=True, slots=True)
class InspectedPanelTensor:
    """A parameter in panel files, in the layout that products read."""

    name: str
    dtype: str | None
    """None if it is packed."""
    packed: bool
    rank_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PanelInspection:
    """The parameters of panel files, which shard(…, packed=True) writes."""

    model_type: str
    tp: int
    dtype: str
    quantize: str | None
    group_size: int | None
    head: str | None
    parameters: int
    bytes: int
    rank_bytes: tuple[int, ...]
    bytes_read: int
    tensors: tuple[InspectedPanelTensor, ...]


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """What `shard` has written."""

    out: str
    tp: int
    files: tuple[str, ...]
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MergeSummary:
    """What `merge` has written."""

    out: str
    files: tuple[str, ...]
    tensors: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class QuantizeSummary:
    """What `quantize` has written."""

    out: str
    bits: int
    group_size: int
    """Input features that share a scale; -1: a scale per row."""
    tensors: int
    bytes: int
    seconds: float


def inspect(directory: Path, *, tp: int | None = None) -> Inspection | PanelInspection:
    """Lists a checkpoint's tensors and their shards on tp ranks; reads file headers only.

    Returns a PanelInspection for panel files. Arguments are those of `shardwise inspect`.

    Errors: ValueError with the program's line for a wrong argument or checkpoint; Error if the program fails or is missing.
    """
    printed = run("inspect", {"tp": tp}, [directory])
    if "quantization" in printed:
        return _records.read(Inspection, printed, "inspect")
    return _records.read(PanelInspection, printed, "inspect")


def shard(model: Path, out: Path, *, tp: int, packed: bool = False, dtype: str | None = None, quantize: str | None = None,
          group_size: int | None = None, head: str | None = None) -> ShardSummary:
    """Writes a model's weights as one file per rank to the new directory `out`.

    Runs at that tp read them without slicing, or map them if they are packed. Arguments are those of `shardwise shard`.

    Errors: ValueError with the program's line for a wrong argument or model; Error if the program fails or is missing.
    """
    flags = {"tp": tp, "packed": packed, "dtype": dtype, "quantize": quantize, "group_size": group_size, "head": head}
    return _records.read(ShardSummary, run("shard", flags, [model, out]), "shard")


def merge(model: Path, out: Path) -> MergeSummary:
    """Writes a model's weights, sharded for any tp, as one file to the new directory `out`.

    Errors: ValueError with the program's line for a wrong argument or model; Error if the program fails or is missing.
    """
    return _records.read(MergeSummary, run("merge", {}, [model, out]), "merge")


def quantize(model: Path, out: Path, *, bits: int | None = None, group_size: int | None = None, head: str | None = None,
             embeddings: bool = False) -> QuantizeSummary:
    """Writes a model with int8 or int4 linear weights in the GPTQ format to the new directory `out`.

    Arguments are those of `shardwise quantize`; its help lists their values, and what None means.

    Errors: ValueError with the program's line for a wrong argument or model; Error if the program fails or is missing.
    """
    flags = {"bits": bits, "group_size": group_size, "head": head, "embeddings": embeddings}
    return _records.read(QuantizeSummary, run("quantize", flags, [model, out]), "quantize")

"""The function `plan`: which ways to split a model over a cluster fit, and how long each takes."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from shardwise import _records
from shardwise._plan_types import (Decisions, InferencePlans, LargestCaches, LargestSteps, PublishedFigures,
                                   ShardedTensors, TrainingPlans)
from shardwise._program import run

Path = str | os.PathLike[str]
Described = Path | Mapping[str, Any]
"""A name, a file, or the contents of that file."""
Plans = (TrainingPlans | InferencePlans | ShardedTensors | PublishedFigures | LargestSteps | LargestCaches
         | Decisions)


@overload
def plan(config: Described, *, task: Literal["train"] = "train", ranks: int | None = None, min_gpus: bool = False,
         machine: Described | None = None, batch_size: int | None = None, dtype: str | None = None,
         memory_cap: float | None = None, tp: int | None = None, seq_len: int | None = None, pp: int | None = None,
         dp: int | None = None, cp: int | None = None, ep: int | None = None, micro_batch_size: int | None = None,
         zero: int | None = None, recompute: str | None = None, gradient_dtype: str | None = None,
         split_batch: bool = False, freeze: Sequence[str] | None = None, overlap: str | None = None,
         algorithm: str | None = None) -> TrainingPlans: ...
@overload
def plan(config: Described, *, task: Literal["infer"], ranks: int | None = None, min_gpus: bool = False,
         machine: Described | None = None, batch_size: int | None = None, dtype: str | None = None,
         memory_cap: float | None = None, tp: int | None = None, pp: int | None = None, ep: int | None = None,
         prompt_tokens: int | None = None, new_tokens: int | None = None, quantize: str | None = None,
         group_size: int | None = None, head: str | None = None, kv_cache_dtype: str | None = None,
         algorithm: str | None = None) -> InferencePlans: ...
@overload
def plan(config: Described, *, shapes: Literal[True], tp: int, task: str = "train", batch_size: int | None = None,
         seq_len: int | None = None, prompt_tokens: int | None = None) -> ShardedTensors: ...
@overload
def plan(config: Described, *, largest: Literal["batch", "seq"], ranks: int, task: Literal["train"] = "train",
         machine: Described | None = None, dtype: str | None = None, memory_cap: float | None = None,
         tp: int | None = None, seq_len: int | None = None, zero: int | None = None,
         recompute: str | None = None, gradient_dtype: str | None = None,
         freeze: Sequence[str] | None = None) -> LargestSteps: ...
@overload
def plan(config: Described, *, largest: Literal["kv"], ranks: int, task: Literal["infer"],
         machine: Described | None = None, dtype: str | None = None, memory_cap: float | None = None,
         tp: int | None = None, prompt_tokens: int | None = None, new_tokens: int | None = None,
         quantize: str | None = None, group_size: int | None = None, head: str | None = None,
         kv_cache_dtype: str | None = None) -> LargestCaches: ...
@overload
def plan(*, check: Literal[True]) -> PublishedFigures: ...
@overload
def plan(*, matrix: Literal[True]) -> Decisions: ...
def plan(config: Described | None = None, *, task: str = "train", ranks: int | None = None, min_gpus: bool = False,
         machine: Described | None = None, batch_size: int | None = None, dtype: str | None = None,
         memory_cap: float | None = None, tp: int | None = None, prompt_tokens: int | None = None,
         new_tokens: int | None = None, quantize: str | None = None, group_size: int | None = None,
         head: str | None = None, kv_cache_dtype: str | None = None, seq_len: int | None = None, pp: int | None = None,
         dp: int | None = None, cp: int | None = None, ep: int | None = None, micro_batch_size: int | None = None,
         zero: int | None = None, recompute: str | None = None, gradient_dtype: str | None = None,
         split_batch: bool = False, freeze: Sequence[str] | None = None, overlap: str | None = None,
         algorithm: str | None = None, largest: str | None = None, shapes: bool = False,
         matrix: bool = False, check: bool = False) -> Plans:
    """Ranks the ways to split a training step or generation over a cluster, by arithmetic alone.

    `config` is a preset (`llama-3.1-70b`), a directory or file with a config.json, or its contents as a dict. `machine`
    is a name (`h100`), a file of `shardwise bench machine`, or its contents. All other arguments are the flags of
    `shardwise plan`; its help lists their values, and what None means.

        best = shardwise.plan("llama-3.1-70b", ranks=64, batch_size=128).plans[0]

    Returns TrainingPlans, or InferencePlans with task="infer"; `plans` is empty if nothing fits, and `refused` says why.
    With shapes=True returns the ShardedTensors of a block, with check=True the PublishedFigures, with matrix=True the
    Decisions, and with `largest` the LargestSteps or LargestCaches.

    Errors: ValueError with the program's line for a wrong argument; Error if the program fails or is missing.
    """
    flags = {"model": config, "task": task, "ranks": ranks, "min_gpus": min_gpus, "machine": machine,
             "batch_size": batch_size, "dtype": dtype, "memory_cap": memory_cap, "tp": tp, "prompt_tokens": prompt_tokens,
             "new_tokens": new_tokens, "quantize": quantize, "group_size": group_size, "head": head,
             "kv_cache_dtype": kv_cache_dtype, "seq_len": seq_len, "pp": pp, "dp": dp, "cp": cp,
             "ep": ep, "micro_batch_size": micro_batch_size, "zero": zero, "recompute": recompute,
             "gradient_dtype": gradient_dtype, "split_batch": split_batch, "freeze": freeze, "overlap": overlap,
             "algorithm": algorithm, "largest": largest, "shapes": shapes, "matrix": matrix, "check": check}
    printed = run("plan", flags, exit_codes=(0, 1))  # 1: nothing fits, or a figure is outside its band
    if check:
        return _records.read(PublishedFigures, printed, "plan")
    if matrix:
        return _records.read(Decisions, printed, "plan")
    if largest and task == "infer":
        return _records.read(LargestCaches, printed, "plan")
    if largest:
        return _records.read(LargestSteps, printed, "plan")
    if shapes:
        return _records.read(ShardedTensors, printed, "plan")
    if task == "infer":
        return _records.read(InferencePlans, printed, "plan")
    return _records.read(TrainingPlans, printed, "plan")

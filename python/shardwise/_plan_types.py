"""What `plan` returns. Bytes, seconds and tokens are those of a whole step, or of a whole batch of texts."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Degrees:
    """How a training step is split: ranks of tensor (tp), context (cp), pipeline (pp), data (dp) and expert parallelism
    (ep, over ranks of tp, cp and dp), and their variants."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    sequence_parallel: bool
    zero: int
    """What data-parallel ranks split: 0 nothing, 1 optimizer states, 2 and gradients, 3 and weights."""
    micro_batch_size: int
    chunks: int
    """Parts of the layers that a pipeline stage has; more than 1 is an interleaved schedule."""
    recompute: str
    """none, selective or full."""
    split_batch: bool
    """Whether one half of each micro-batch is computed beside the collectives of the other."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of a rank of the stage that needs the most, at its peak."""

    total: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int


@dataclass(frozen=True, slots=True)
class TrainingSeconds:
    """Seconds of a step, by part; collectives and messages as far as nothing hides them."""

    total: float
    compute: float
    tensor_parallel: float
    context_parallel: float
    expert_parallel: float
    pipeline: float
    bubble: float
    data_parallel: float
    optimizer: float


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A way to train that fits."""

    degrees: Degrees
    peak_stage: int
    """The pipeline stage that needs the most memory."""
    memory_bytes: TrainingMemory
    seconds: TrainingSeconds
    tokens_per_second: float
    utilization: float
    """The model's FLOP, every key counted, as a fraction of what the devices can compute in that time (MFU)."""
    utilization_of_visible_keys: float
    """The same with the keys that a causal mask lets through, about half of them."""
    hardware_utilization: float
    """With the FLOP that backward computes again (HFU)."""


@dataclass(frozen=True, slots=True)
class RefusedTrainingPlan:
    """A way to train that is not possible or does not fit."""

    degrees: Degrees
    reason: str
    needed_bytes: int
    """Of a rank at its peak, if the reason is memory; otherwise 0."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of a parameter's model states."""

    weights: int
    gradients: int
    optimizer: int
    """AdamW's moments, and a master weight beside a 16-bit one."""


@dataclass(frozen=True, slots=True)
class TrainingPlans:
    """All ways to train a model on a cluster, the fastest first."""

    model: str
    parameters: int
    active_parameters: int
    """That a token passes through: of a mixture's experts those chosen for it."""
    layers: int
    machine: str
    devices_per_node: int
    ranks: int
    sequence_length: int
    batch_size: int
    element_bytes: int
    """Of a weight and an activation: 2 or 4."""
    state_bytes: StateBytes
    overlaps_collectives: bool
    """Whether tensor parallelism's collectives run beside products, where ranks do not share memory."""
    algorithm: str
    """Of collectives that were not measured: ring, two-shot or tree."""
    usable_bytes: int
    """That a rank may fill."""
    plans: tuple[TrainingPlan, ...]
    refused: tuple[RefusedTrainingPlan, ...]


@dataclass(frozen=True, slots=True)
class LargestStep:
    """The largest micro-batch or sequence with a number of ranks of tensor parallelism; size 0: one does not fit."""

    tp: int
    dp: int
    sequence_parallel: bool
    size: int
    """Sequences of a micro-batch, or tokens of its only sequence."""
    memory_bytes: int
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class LargestSteps:
    """What fits with each number of ranks of tensor parallelism."""

    largest: str
    """micro_batch_size or sequence_length."""
    plans: tuple[LargestStep, ...]


@dataclass(frozen=True, slots=True)
class LargestCache:
    """The largest number of texts whose keys and values fit; size 0: those of one do not."""

    tp: int
    replicas: int
    size: int
    """Texts, over all replicas."""
    cached_tokens: int
    memory_bytes: int
    token_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class LargestCaches:
    """What fits with each number of ranks of tensor parallelism."""

    largest: str
    plans: tuple[LargestCache, ...]


@dataclass(frozen=True, slots=True)
class DecidedPlan:
    """A plan of the matrix."""

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    zero: int
    seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A typical run: the fastest plan, and the fastest that has the degrees that are advised."""

    model: str
    machine: str
    ranks: int
    batch_size: int
    sequence_length: int
    fastest: DecidedPlan | None
    advised: DecidedPlan | None
    """None if nothing fits."""
    source: str
    """Of the advice."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Which split for which model."""

    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class InferenceDegrees:
    """How generation is split: replicas of the model, each over pp stages of tp ranks; ep ranks share the experts of a
    block, up to tp of one replica, above it of several."""

    tp: int
    pp: int
    ep: int
    replicas: int


@dataclass(frozen=True, slots=True)
class InferenceMemory:
    """Bytes of a rank of the stage that needs the most, at its peak."""

    total: int
    weights: int
    cache: int
    buffers: int


@dataclass(frozen=True, slots=True)
class ForwardSeconds:
    """Seconds of a forward pass, by part."""

    total: float
    compute: float
    tensor_parallel: float
    expert_parallel: float
    pipeline: float


@dataclass(frozen=True, slots=True)
class InferencePlan:
    """A way to generate that fits."""

    degrees: InferenceDegrees
    peak_stage: int
    """The pipeline stage that needs the most memory."""
    memory_bytes: InferenceMemory
    prompt_seconds: ForwardSeconds
    """Until every text has its first token."""
    token_seconds: ForwardSeconds
    """Of one more token of each text: all texts of a replica pass its stages as one batch."""
    pipelined_token_seconds: float | None
    """Of the same, if the texts of a replica are as many micro-batches as it has stages; None with one stage, or with
    fewer texts than stages. Rates and sums have the shorter of the two."""
    tokens_per_second: float
    seconds: float
    """Until all texts are complete."""


@dataclass(frozen=True, slots=True)
class RefusedInferencePlan:
    """A way to generate that is not possible or does not fit."""

    degrees: InferenceDegrees
    reason: str


@dataclass(frozen=True, slots=True)
class InferencePlans:
    """All ways to generate with a model on a cluster, the shortest time of all texts first."""

    model: str
    parameters: int
    format: str
    """Of the weights."""
    machine: str
    ranks: int
    texts: int
    prompt_tokens: int
    new_tokens: int
    usable_bytes: int
    """That a rank may fill."""
    plans: tuple[InferencePlan, ...]
    refused: tuple[RefusedInferencePlan, ...]


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A weight or an activation of a block, and the indices that each rank has of it."""

    tensor: str
    shape: tuple[int, ...]
    is_weight: bool
    dim: int | None
    """The sharded one; None if every rank has the whole tensor."""
    ranges: tuple[tuple[tuple[int, int], ...], ...]
    """Of each rank, half-open; empty if every rank has the whole tensor."""


@dataclass(frozen=True, slots=True)
class BlockCollective:
    """The calls of one collective in the forward or backward of a block."""

    sequence_parallel: bool
    phase: str
    """forward or backward."""
    collective: str
    """all_reduce, all_gather or reduce_scatter."""
    calls: int
    bytes: tuple[int, ...]
    """That each rank sends in all calls."""


@dataclass(frozen=True, slots=True)
class ShardedTensors:
    """The tensors of a block, split over tp ranks, and what the ranks send in it."""

    tp: int
    tensors: tuple[ShardedTensor, ...]
    block_collectives: tuple[BlockCollective, ...]


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A figure that others have published or measured, and what is planned for it."""

    figure: str
    of: str
    published: float
    planned: float
    error: float
    """planned / published - 1."""
    band: tuple[float, float]
    """Within which the error must be."""
    in_band: bool
    source: str


@dataclass(frozen=True, slots=True)
class PublishedFigures:
    """The figures that the planner is compared with."""

    figures: tuple[PublishedFigure, ...]

"""Tensor parallelism over the ranks of one node.

`plan`, `inspect`, `shard`, `merge`, `quantize` and `doctor` run the program `shardwise` and return its results as
dataclasses. `shardwise.torch` is a torch.distributed backend; only it imports torch.
"""
from shardwise._checkpoints import (InspectedPanelTensor, InspectedTensor, Inspection, MergeSummary, PanelInspection,
                                    QuantizeSummary, ShardSummary, inspect, merge, quantize, shard)
from shardwise._doctor import Check, Comparison, Deviation, DoctorReport, LayerDeviations, Traffic, doctor
from shardwise._plan import plan
from shardwise._plan_types import (BlockCollective, DecidedPlan, Decision, Decisions, Degrees, ForwardSeconds,
                                   InferenceDegrees, InferenceMemory, InferencePlan, InferencePlans, LargestCache,
                                   LargestCaches, LargestStep, LargestSteps, PublishedFigure, PublishedFigures,
                                   RefusedInferencePlan, RefusedTrainingPlan, ShardedTensor, ShardedTensors, StateBytes,
                                   TrainingMemory, TrainingPlan, TrainingPlans, TrainingSeconds)
from shardwise._program import Error

__all__ = [
    "plan", "inspect", "shard", "merge", "quantize", "doctor", "Error",
    "TrainingPlans", "TrainingPlan", "RefusedTrainingPlan", "Degrees", "StateBytes", "TrainingMemory", "TrainingSeconds",
    "InferencePlans", "InferencePlan", "RefusedInferencePlan", "InferenceDegrees", "InferenceMemory", "ForwardSeconds",
    "ShardedTensors", "ShardedTensor", "BlockCollective", "PublishedFigures", "PublishedFigure",
    "LargestSteps", "LargestStep", "LargestCaches", "LargestCache", "Decisions", "Decision", "DecidedPlan",
    "Inspection", "InspectedTensor", "PanelInspection", "InspectedPanelTensor",
    "ShardSummary", "MergeSummary", "QuantizeSummary",
    "DoctorReport", "Comparison", "LayerDeviations", "Deviation", "Check", "Traffic",
]

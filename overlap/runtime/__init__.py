"""Communicator thread, worker pool and pipelines of slice programs; knows no arrays and no FFT."""

from .load import Load
from .pipeline import Pipeline
from .requests.operations import all_of, start
from .requests.requests import AsyncComm, barrier, parallel, stagger, take_turn, wait_for_slices
from .runtime import Runtime
from .scheduling.ready_steps import worker_index

__all__ = [
    "AsyncComm",
    "Load",
    "Pipeline",
    "Runtime",
    "all_of",
    "barrier",
    "parallel",
    "stagger",
    "start",
    "take_turn",
    "wait_for_slices",
    "worker_index",
]

"""Communicator thread, worker pool and pipelines of slice programs; knows no arrays and no FFT."""

from .communicator import LOOKS_PER_EXCHANGE
from .core import Pipeline, Runtime
from .requests import AsyncComm, after, barrier, parallel, stagger, turn
from .workers import worker_index

__all__ = ["LOOKS_PER_EXCHANGE", "AsyncComm", "Pipeline", "Runtime", "after", "barrier",
           "parallel", "stagger", "turn", "worker_index"]

"""Communicator thread, worker pool and pipelines of slice programs; knows no arrays and no FFT."""

from .core import Pipeline, Runtime
from .requests import AsyncComm, after, barrier, parallel, turn
from .workers import worker_index

__all__ = ["AsyncComm", "Pipeline", "Runtime", "after", "barrier", "parallel", "turn",
           "worker_index"]

"""Communicator thread, worker pool and pipelines of slice programs; knows no arrays and no FFT."""

from .communicator import LOOKS_PER_EXCHANGE
from .core import Pipeline, Runtime
from .requests import AsyncComm, barrier, parallel
from .workers import worker_index

__all__ = ["LOOKS_PER_EXCHANGE", "AsyncComm", "Pipeline", "Runtime", "barrier", "parallel",
           "worker_index"]

"""Communicator thread, worker pool and pipelines of slice programs; knows no arrays and no FFT."""

from .pipeline import Pipeline
from .requests import AsyncComm, barrier, parallel, stagger, take_turn, wait_for_slices
from .runtime import Runtime
from .waiting import POLLS_PER_EXCHANGE
from .workers import worker_index

__all__ = ["AsyncComm", "POLLS_PER_EXCHANGE", "Pipeline", "Runtime", "barrier", "parallel",
           "stagger", "take_turn", "wait_for_slices", "worker_index"]

"""The name of this computer's processor."""

from __future__ import annotations

import platform


def cpu_model() -> str:
    """Return the processor's name according to the system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()

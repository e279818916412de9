"""Modules of examples/gkv, which are found where this one was imported before."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gkv"))

"""Ghost cells and other ranks' entries, exchanged by remote writes or requests while the rest is computed."""

from .agreed import agreed_blocks
from .halo import Halo, Pending

__all__ = ["Halo", "Pending", "agreed_blocks"]

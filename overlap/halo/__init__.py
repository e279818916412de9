"""Ghost cells and other ranks' entries, exchanged by remote writes or messages during the computation."""

from ..ranks.objects import old_names
from .agreed import agreed_blocks
from .halo import Halo, PendingHalo

__all__ = ["Halo", "PendingHalo", "agreed_blocks"]

__getattr__ = old_names(__name__, Pending="PendingHalo")

"""Who holds what: partitions, exchanges, distributed arrays. Knows no threads."""

from .distarray import DistArray
from .exchange import Exchange
from .partition import block, chunks, complement, intersect, length_of, mode_segments
from .slab import Slab

__all__ = ["DistArray", "Exchange", "Slab", "block", "chunks", "complement", "intersect", "length_of",
           "mode_segments"]

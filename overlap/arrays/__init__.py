"""Who holds what: partitions, exchanges, distributed arrays. Knows no threads."""

from .distarray import DistArray
from .exchange import Exchange, mpi_type
from .layout import (
                     Crossing,
                     Layout,
                     Leg,
                     Remainder,
                     Swap,
                     box_shape,
                     contiguous,
                     legs,
                     moved,
                     offset,
)
from .partition import block, chunks, complement, intersect, length_of, mode_segments
from .slab import Slab
from .topology import subcomms

__all__ = ["Crossing", "DistArray", "Exchange", "Layout", "Leg", "Remainder", "Slab", "Swap",
           "block", "box_shape", "chunks", "complement", "contiguous", "intersect", "legs",
           "length_of", "moved", "mode_segments", "mpi_type", "offset",
           "subcomms"]

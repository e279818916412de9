"""Distributed arrays: partitions, exchanges and the arrays themselves. Uses no threads."""

from ..checks import mask_problem, refuse_masks
from ..ranks.door import collective_section
from ..ranks.objects import old_names
from .blocks import Blocks, Box, Neighbour
from .distarray import DistArray, overlaps_itself
from .distribution import Distribution, part_of
from .exchange import mpi_type
from .layout import AxisSwap, LateBlocks, Layout, MessageBoxes, TransposeBlocks, box_shape, contiguous, moved, offset
from .partition import block, chunks, complement, intersect, length_of, mode_segments
from .pieces import pieces_on
from .placed import placed_as
from .redistribution import gather, scatter
from .stages import StageAxes, axis_names, ffts_along, stages
from .topology import coordinates, same_ranks, subcomms
from .weights import Weights, checked, checked_shares, combined, shares

__all__ = [
    "AxisSwap",
    "Blocks",
    "Box",
    "DistArray",
    "Distribution",
    "LateBlocks",
    "Layout",
    "MessageBoxes",
    "Neighbour",
    "StageAxes",
    "TransposeBlocks",
    "Weights",
    "axis_names",
    "block",
    "box_shape",
    "checked",
    "checked_shares",
    "chunks",
    "collective_section",
    "combined",
    "complement",
    "contiguous",
    "coordinates",
    "ffts_along",
    "gather",
    "intersect",
    "length_of",
    "mask_problem",
    "mode_segments",
    "moved",
    "mpi_type",
    "offset",
    "overlaps_itself",
    "part_of",
    "pieces_on",
    "placed_as",
    "refuse_masks",
    "same_ranks",
    "scatter",
    "shares",
    "stages",
    "subcomms",
]

__getattr__ = old_names(__name__, Message="MessageBoxes", Stage="StageAxes")

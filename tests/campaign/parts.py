"""All parts, in the order of the report."""

from . import (
    busy,
    damage,
    failures,
    faults,
    interrupts,
    linked,
    losses,
    mismatches,
    mixed,
    restarts,
    schedules,
    shapes,
    soak,
    survivors,
)

PARTS = (
    shapes.PART,
    faults.PART,
    failures.PART,
    mismatches.PART,
    interrupts.PART,
    losses.PART,
    *survivors.PARTS,
    damage.PART,
    restarts.PART,
    schedules.PART,
    soak.PART,
    mixed.PART,
    linked.PART,
    busy.PART,
)

"""All parts, in the order of the report."""

from . import damage, faults, linked, losses, mismatches, schedules, shapes, soak

PARTS = (shapes.PART, faults.PART, mismatches.PART, losses.PART, damage.PART, schedules.PART, soak.PART, linked.PART)

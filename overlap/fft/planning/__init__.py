"""The choice of a plan's settings: search, process grids, tuning files."""

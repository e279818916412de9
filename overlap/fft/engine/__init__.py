"""The engine of all plans: local FFTs, sweeps, packing, and the tasks of a pipeline."""

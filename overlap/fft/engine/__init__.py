"""What a plan runs on: local FFTs, sweeps, packing, and the tasks of a pipeline."""

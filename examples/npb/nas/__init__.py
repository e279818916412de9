"""The NAS parallel benchmarks EP, IS, CG, FT and MG on `overlap`."""

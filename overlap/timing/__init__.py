"""What it should take: the timing model, models of all-to-alls, the runtime on a virtual clock."""

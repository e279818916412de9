"""What it should take: the timing model, models of all-to-alls, simulated ranks."""

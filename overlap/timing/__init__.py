"""Expected times: the timing model, models of all-to-alls, simulated ranks."""

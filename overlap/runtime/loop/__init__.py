"""The compiled loop that runs the calls of plans."""

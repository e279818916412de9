"""One call of a pipeline on one rank: its slots, its ways to wait, the order in which it issues operations."""

"""One call of a pipeline on one rank: its slots, how it waits, its paths through the issue order."""

"""The choice of a plan's settings: candidates with a model of their time, tournaments, files."""

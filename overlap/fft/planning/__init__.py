"""How a plan comes to its settings: search, grid choice, tuning files."""

"""Ways over from other libraries: their names and arguments, on this one's transforms."""

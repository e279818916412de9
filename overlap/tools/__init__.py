"""Commands, shaped links, launching, measurements and their reports."""

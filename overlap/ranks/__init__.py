"""Collectives of the library: headers by which ranks confirm the call that they begin, deadlines, communicators."""

"""Requests that slices await: MPI calls and others, and the agreement of ranks on them."""

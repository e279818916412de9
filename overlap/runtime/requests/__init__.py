"""What slices await: MPI calls and other requests, and how ranks agree on them."""

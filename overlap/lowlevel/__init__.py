"""What compiled code does with addresses: loads and stores, and calls of the MPI library."""

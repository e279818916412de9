"""What compiled code does with addresses: loads and stores, tables of copies, and calls of the MPI library."""

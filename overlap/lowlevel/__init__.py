"""Operations of compiled code on addresses: loads and stores, tables of copies, and calls of the MPI library."""

"""Other libraries' interfaces, on the transforms of this one."""

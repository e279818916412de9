"""pytest's plugin with the arguments that mpi4py-fft's file of tests of files gives when it is run as a program."""


def pytest_generate_tests(metafunc):
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend, forward_output", [("hdf5", False), ("hdf5", True), ("netcdf4", False)])

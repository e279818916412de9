"""pytest's plugin for pySDC's spectral methods: its tests start processes; here they run on all ranks."""

import pytest
from mpi4py import MPI


def pytest_collection_modifyitems(items):
    module = items[0].module

    def run(num_procs, test, **arguments):
        if num_procs != MPI.COMM_WORLD.size:
            pytest.skip("for another number of ranks")
        if "axes" in arguments:
            arguments["axes"] = tuple(map(int, arguments["axes"].split(",")))
        function = {
            "transform": module.test_transform,
            "diff": module.test_differentiation_matrix2D,
            "int": module.test_integration_matrix2D,
            "tau": module.test_tau_method2D,
            "dealias": module._test_transform_dealias,
        }[test]
        function(**{"variant": "T2U", "bc_val": None, "useMPI": True, **arguments})

    module.run_MPI_test = run

"""Fields in other ranks' memory, under Open MPI with fault tolerance."""

import jobs
import pytest
from marks import exhaustive

pytestmark = pytest.mark.usefixtures("openmpi")


@pytest.mark.parametrize(
    "ranks, args",
    [
        (3, {}),
        (2, {"in_a_save": True}),
        (4, {"copies": 2, "victims": [1, 2], "kind": "FFT3"}),
        exhaustive(4, {"victims": [0, 2]}),
        exhaustive(4, {"victims": [1, 2], "lost": [1]}),
        (2, {"damage": "noticed", "lost": [1]}),
    ],
)
def test_fields_come_back(ranks, args, tmp_path):
    lost = len(args.get("victims", (1,)))
    jobs.run_job("protected_cases:restored", ranks, mpi="ulfm", lost=lost, args={"folder": str(tmp_path), **args})


def test_bad_input():
    jobs.run_job("protected_cases:bad_input,partners", 3, mpi="ulfm", fresh=True)

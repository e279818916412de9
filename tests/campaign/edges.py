"""The tests that are made of the public names, on more ranks and on other libraries than the suite's."""

import jobs
import test_generated
from generated import Call, Subject

import overlap

from .draw import AREAS, Drawn, libraries
from .harness import Part

CASES = ("closed", "bad_arguments")


def run(seed):
    """All calls of an area after their object's end, or with every argument bad on one rank, on 3 or 4 ranks."""
    area, rest = AREAS[seed % len(AREAS)], seed // len(AREAS)
    mpi = Drawn(seed).pick(libraries()) if rest >= 4 * len(CASES) else libraries()[rest // 4 % len(libraries())]
    jobs.run_job(
        f"test_generated:{CASES[rest % 2]}",
        3 + rest // 2 % 2,
        mpi=mpi,
        fresh=True,
        deadline_s=1800,
        args={"area": area},
    )


def defect():
    """A call that takes what is wrong on one rank is found."""
    jobs.run_job("campaign.edges:accepting", 3, fresh=True)


def accepting(comm):
    """Test a function that takes any number."""

    def taking(number):
        with overlap.Runtime(comm) as runtime:
            runtime.preflight()

    subject = Subject(
        ("taking",),
        make=lambda lab: None,
        calls={"taking": Call(lambda lab, one: {"number": 1})},
        functions={"taking": taking},
    )
    test_generated.SUBJECTS["taking"] = (subject,)
    test_generated.bad_arguments(comm, "taking")


PART = Part(
    "edges",
    "the tests that are made of the public names, on 3 and 4 ranks, MPICH and Open MPI: every call of an object after "
    "its end raises a ClosedError that names it; an argument that is bad on one rank is the same InputError on all "
    "ranks, and the next call is right",
    48,
    run,
    defect,
    "is accepted",
)

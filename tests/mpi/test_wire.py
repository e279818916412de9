"""What goes over the wire, and the bits of results, are those that were written down (`write_wire`)."""

import jobs
import pytest


def test_programs_do_what_they_did():
    # In processes of their own: reports of failures name all that the processes have heard of before.
    jobs.run_job("wire_cases:programs_do_what_they_did", 2, args={"every": 5}, fresh=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_programs_do_what_they_did(ranks):
    jobs.run_job("wire_cases:programs_do_what_they_did", ranks, fresh=True)

"""The runtime's invariants (docs/design.md names them), on 1 to 4 ranks and two MPI libraries."""

import jobs
import pytest
from marks import exhaustive

CASES = (
    "runtime_cases:forced_order",
    "runtime_cases:random_order",
    "runtime_cases:one_thread_talks",
    "slot_cases:lanes_bound_the_memory",
    "slot_cases:barriers",
    "slot_cases:barriers_and_lanes",
    "call_cases:bit_for_bit",
    "call_cases:awaitable_calls",
    "call_cases:persistent_scans_and_pieces",
    "call_cases:point_to_point",
    "call_cases:small_batches",
    "call_cases:auto_settles",
    "call_cases:slices_return",
    "call_cases:plans_in_slices,options_of_runtimes",
    "meeting_cases:headers_and_agreements",
    "lifetime_cases:threads_end",
    "lifetime_cases:closing_goes_on",
    "lifetime_cases:paused",
    "lifetime_cases:nested_runtimes",
    "lifetime_cases:thread_pools_restored",
)
TIGHT = ("slot_cases:workers_take_what_is_ready", "slot_cases:parallel_parts", "runtime_cases:core_tokens")


@pytest.mark.parametrize("case", CASES + TIGHT)
def test_on_two_ranks(case):
    jobs.run_job(case, 2)


@pytest.mark.parametrize("ranks", [1, 3, exhaustive(4)])
def test_on_any_number_of_ranks(ranks):
    jobs.run_job(",".join(CASES), ranks)


SOME = [case for case in CASES if case.split(":")[0] in ("runtime_cases", "meeting_cases")] + ["call_cases:bit_for_bit"]


@pytest.mark.parametrize("cases", [SOME, exhaustive(CASES)], ids=["some", "all"])
def test_under_open_mpi(openmpi, cases):
    jobs.run_job(",".join(cases), 2, mpi="openmpi")


def test_more_runtimes_than_mpi_has_communicators():
    jobs.run_job("lifetime_cases:many_runtimes", 2, args={"count": 150, "left": 12})


def test_second_pipeline_while_one_is_running():
    jobs.run_job("lifetime_cases:second_pipeline_while_running", 2)


@pytest.mark.parametrize("learning", [False, True])
def test_exchanges_in_flight(learning):
    jobs.run_job("runtime_cases:exchanges_in_flight", 2, args={"first": learning})


# Where the receiver cannot read the sender's memory by itself, a long message needs both of them.
COPIED_TWICE = {
    "mpich": {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "MPIR_CVAR_CH4_XPMEM_ENABLE": "0"},
    "openmpi": {"OMPI_MCA_smsc": "^cma,xpmem,knem", "OMPI_MCA_btl_sm_single_copy_mechanism": "none"},
}


def test_messages_go_on_while_ranks_meet(mpi):
    jobs.run_job("meeting_cases:messages_go_on_while_ranks_meet", 2, mpi=mpi, env=COPIED_TWICE[mpi])


def test_split_that_leaves_a_rank_out():
    jobs.run_job("call_cases:asymmetric_split", 3)


def test_input_of_a_pipeline_is_checked():
    jobs.run_job("lifetime_cases:input_checked", 2)


def test_timers_are_exact_for_polls_only():
    jobs.run_job("lifetime_cases:timers", 2)


@pytest.mark.parametrize("already", [exhaustive(0), 5, exhaustive(18)])
def test_workers_are_nicer_than_the_process(already):
    jobs.run_job("lifetime_cases:priorities", 1, args={"already": already}, fresh=True)


@pytest.mark.parametrize(
    "level, notes, ranks, lines",
    [
        ("multiple", "all", 2, 1),
        ("multiple", "", 2, 0),
        ("serialized", "all", 2, 0),
        exhaustive("multiple", "all", 1, 0),
    ],
)
def test_a_thread_level_that_costs_time_is_told_once(level, notes, ranks, lines):
    env = {"MPI4PY_RC_THREAD_LEVEL": level, "OVERLAP_NOTES": notes}
    result = jobs.run_job("runtime_cases:thread_level_is_told", ranks, env=env, args={"level": level})
    told = [line for line in result.err.splitlines() if "MPI runs at MULTIPLE" in line]
    assert len(told) == lines and all('mpi4py.rc.thread_level = "serialized"' in line for line in told)

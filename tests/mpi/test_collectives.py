"""Collectives by remote writes, on 1 to 8 ranks and two MPI libraries."""

import jobs
import pytest
from marks import exhaustive

FEW_SIZES = [0, 1, 7, 1000]
SIZES = [0, 1, 6, 7, 128, 1000, 20_000]
SHORT = "collectives_cases:scalars,collectives_cases:other_arguments,collectives_cases:freed"


@pytest.mark.parametrize(
    "ranks, counts", [(1, FEW_SIZES), (2, SIZES), (3, FEW_SIZES), *[exhaustive(ranks, SIZES) for ranks in (1, 3, 4)]]
)
def test_all_seven_with_every_root(ranks, counts):
    jobs.run_job("collectives_cases:all_seven", ranks, args={"counts": counts})


@pytest.mark.exhaustive
def test_all_seven_on_up_to_eight_ranks():
    jobs.run_job("collectives_cases:fewer_ranks", 8, args={"sizes": [5, 6, 7, 8], "counts": [1, 7]})


@pytest.mark.parametrize("ranks", [exhaustive(2), 3, exhaustive(5)])
def test_trees(ranks):
    """What more ranks use than a test can start."""
    jobs.run_job("collectives_cases:all_seven", ranks, args={"counts": [1, 6, 7], "flat": 1})


@pytest.mark.parametrize("ranks", [2, exhaustive(3)])
def test_long_messages_by_the_window_or_by_mpi(ranks):
    jobs.run_job("long_cases:by_either_way,different", ranks)


@pytest.mark.parametrize("ranks, counts", [(2, [1000, 20_000]), exhaustive(3, [1000, 131_072])])
def test_messages_of_many_pieces(ranks, counts):
    jobs.run_job("collectives_cases:all_seven", ranks, args={"counts": counts, "max_nbytes": 1000})


@pytest.mark.parametrize("ranks", [1, 3])
def test_arguments(ranks):
    jobs.run_job(SHORT, ranks)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [1, 3])
def test_types_without_reductions(ranks):
    jobs.run_job("collectives_cases:types_without_reductions", ranks)


@pytest.mark.parametrize("few", [True, exhaustive(False)])
def test_types_and_operations(few):
    for ranks in (1, 3):  # one compiles what three would compile at the same time
        jobs.run_job("collectives_cases:types_and_operations", ranks, args={"few": few})


@pytest.mark.parametrize("ranks, flat", [(2, 8), exhaustive(4, 8), exhaustive(4, 1), (3, 1)])
def test_the_same_to_the_last_bit(ranks, flat):
    jobs.run_job("collectives_cases:the_same_to_the_last_bit", ranks, args={"flat": flat})


@pytest.mark.parametrize("ranks, rounds", [(2, 20_000), exhaustive(2, 100_000), (3, 3_000), exhaustive(4, 3_000)])
def test_rounds_back_to_back(ranks, rounds):
    jobs.run_job("collectives_cases:many_rounds", ranks, args={"rounds": rounds})


@pytest.mark.parametrize("ranks, rounds", [(1, 100), (2, 100_000), (3, 2_000), exhaustive(4, 2_000)])
def test_rounds_in_compiled_code(ranks, rounds):
    jobs.run_job("collectives_cases:compiled_loop", ranks, args={"rounds": rounds})


def test_many_instances():
    jobs.run_job("collectives_cases:many_instances", 2, args={"count": 60})


def test_a_second_thread():
    jobs.run_job("collectives_cases:closed_in_the_middle", 1)
    jobs.run_job("collectives_cases:beside_another_thread", 3)


def test_sub_communicators():
    jobs.run_job("collectives_cases:sub_communicators", 3)


@pytest.mark.parametrize(
    "case",
    [
        "size",
        "type",
        "operation",
        "collective",
        "unlike",
        "contiguous",
        "read-only",
        "no such operation",
        "no such type",
        "an object",
        "root",
        "scalar",
    ],
)
def test_bad_input_is_told_on_all_ranks(case):
    jobs.run_job("collectives_error_cases:bad_input", 3, args={"case": case})


@pytest.mark.parametrize("ranks", [exhaustive(1), 3])
def test_buffers_that_overlap(ranks):
    jobs.run_job("collectives_error_cases:overlapping", ranks)


def test_bad_options():
    jobs.run_job("collectives_error_cases:bad_options", 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_interrupt_ends_the_collective_on_all_ranks(compiled):
    jobs.run_job("collectives_error_cases:interrupted", 2, args={"compiled": compiled})


def test_a_rank_that_never_comes_ends_the_job():
    result = jobs.run_job("collectives_error_cases:never_comes", 2, expect_failure=True)
    assert "rank 0 of the node does not take part" in result.err and "Barrier" in result.err


@pytest.mark.parametrize(
    "env", [pytest.param({}, id="one node"), exhaustive({"MPIR_CVAR_NOLOCAL": "1"}, id="two nodes")]
)
def test_a_killed_rank_ends_the_job(env):
    result = jobs.run_job("collectives_error_cases:killed", 2, expect_failure=True, env=env)
    assert result.finished == ()


NODES = (
    "nodes_cases:all_seven,forgotten_chains,collectives_cases:other_arguments,scalars,nodes_cases:rounds,nodes_cases:the_same_bits,"
    "collectives_error_cases:overlapping,collectives_cases:freed,nodes_cases:bad_input,failed_start,without_the_communicator,fewest_messages"
)


@pytest.mark.parametrize("ranks, variable, nodes", [(3, "NOLOCAL", 3), exhaustive(4, "ODD_EVEN_CLIQUES", 2)])
def test_several_nodes(ranks, variable, nodes):
    """What MPICH takes for nodes of their own."""
    jobs.run_job(NODES, ranks, env={f"MPIR_CVAR_{variable}": "1", "NODES_EXPECTED": str(nodes)}, deadline_s=240)


@pytest.mark.exhaustive
def test_a_rank_of_another_node_that_never_comes_ends_the_job():
    result = jobs.run_job("collectives_error_cases:never_comes", 2, expect_failure=True, env={"MPIR_CVAR_NOLOCAL": "1"})
    assert "rank 0 of another node does not take part" in result.err and "Barrier" in result.err


@pytest.mark.parametrize("compiled", [False, exhaustive(True)])
def test_an_interrupt_is_told_to_other_nodes(compiled):
    jobs.run_job("collectives_error_cases:interrupted", 2, args={"compiled": compiled}, env={"MPIR_CVAR_NOLOCAL": "1"})


@pytest.mark.parametrize("ranks, cases", [(2, "collectives_cases:scalars"), exhaustive(3, SHORT)])
def test_under_open_mpi(openmpi, ranks, cases):
    jobs.run_job("collectives_cases:all_seven", ranks, mpi="openmpi", args={"counts": [1, 7, 9000]})
    jobs.run_job(cases, ranks, mpi="openmpi")
    jobs.run_job("collectives_cases:compiled_loop", ranks, mpi="openmpi", args={"rounds": 1_000})


@pytest.mark.exhaustive
def test_nodes_under_open_mpi(openmpi):
    jobs.run_job("collectives_cases:compiled_loop", 2, mpi="openmpi", args={"rounds": 10_000})
    jobs.run_job("nodes_cases:two_nodes,collectives_error_cases:overlapping", 4, mpi="openmpi", deadline_s=240)


@pytest.mark.parametrize("ranks", [exhaustive(2), 3])
def test_no_call_raises_before_the_bad_one(ranks):
    jobs.run_job("drawn_collectives_cases:one_bad_call", ranks, args={"seeds": [2, 3, 5, 7, 11], "calls": 40})


@pytest.mark.exhaustive
def test_no_call_raises_before_the_bad_one_on_two_nodes():
    env = {"MPIR_CVAR_ODD_EVEN_CLIQUES": "1"}
    jobs.run_job("drawn_collectives_cases:one_bad_call", 4, args={"seeds": [103, 105], "calls": 20}, env=env)


@pytest.mark.parametrize("ranks", [exhaustive(1), 2, exhaustive(3)])
def test_arguments_as_mpi4py_takes_them(ranks):
    jobs.run_job("collectives_argument_cases:like_mpi,refused", ranks)


def test_what_leaves_a_call_is_told_on_the_other_ranks():
    jobs.run_job("collectives_error_cases:interrupted_in_python,left_by_an_exception,in_a_forked_child", 2)
    jobs.run_job("collectives_error_cases:interrupted_anywhere", 2, args={"times": 20}, deadline_s=60)


def test_freeing_does_not_wait_for_a_rank_that_has_left():
    jobs.run_job("collectives_error_cases:freed_after_another_has_left", 2, fresh=True)

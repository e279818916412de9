"""The harness: what it must notice, it notices; ranks that are kept are as good as new ones."""

import os
import sys

import commands
import drawing
import jobs
import launchers
import processes
import pytest
from hypothesis import strategies as st
from marks import exhaustive, on_ranks

alone_or_kept = pytest.mark.parametrize("fresh", [True, False], ids=["alone", "kept"])
mostly_kept = pytest.mark.parametrize("fresh", [exhaustive(True, id="alone"), pytest.param(False, id="kept")])


@pytest.fixture(scope="module", autouse=True)
def ranks_of_its_own():
    """End the ranks that other files have left: here ranks are killed, and what is measured of their code is lost."""
    launchers.end_launchers()


@alone_or_kept
def test_every_rank_runs_the_case(mpi, fresh):
    for word in ("greetings", "regards"):
        result = jobs.run_job("jobs_cases:succeed", 3, mpi=mpi, args={"word": word}, fresh=fresh)
        assert result.finished == (0, 1, 2) and result.status == 0
        for rank in range(3):  # the launcher may join lines
            assert result.out.count(f"{word} from rank {rank} of 3") == 1, result
        assert result.out.count("from") == 3 and not result.err


def test_ranks_are_kept_until_a_case_fails():
    def processes():
        return sorted(jobs.run_job("jobs_cases:process_id", 2).out.splitlines())

    first = processes()
    assert [line.split()[1:] for line in first] == [["1", "2"]] * 2
    jobs.run_job("jobs_cases:succeed", 2, args={"word": ""})
    assert processes() == first
    jobs.run_job("jobs_cases:process_id", 2, fresh=True)
    assert processes() == first
    with pytest.raises(jobs.JobFailed):
        jobs.run_job("jobs_cases:warn", 2)
    assert not set(processes()) & set(first)


def test_shared_memory_of_every_library_is_known(mpi):
    """Or that of a dead job would not be found."""
    jobs.run_job("jobs_cases:shared_memory_is_known_by_name", 2, mpi=mpi)


@mostly_kept
def test_failed_assertion_names_its_rank(mpi, fresh):
    with pytest.raises(jobs.JobFailed, match=r"\[rank 1\] AssertionError: this is wrong"):
        jobs.run_job("jobs_cases:fail_an_assertion", 2, mpi=mpi, args={"rank": 1}, fresh=fresh)


@alone_or_kept
def test_failed_assertion_shows_its_values(fresh):
    with pytest.raises(jobs.JobFailed) as caught:
        jobs.run_job("jobs_cases:compare", 1, fresh=fresh, args={"found": [3, 1, 2], "expected": [1, 2, 4]})
    for words in ("assert [1, 2, 3] == [1, 2, 4]", "At index 2 diff: 3 != 4"):
        assert words in str(caught.value)


def test_a_drawn_case_that_fails_is_shrunk():
    with pytest.raises(jobs.JobFailed, match="assert 2 < 2"):
        drawing.check("jobs_cases:small", st.sampled_from(range(5)), 20, 1)


@mostly_kept
@pytest.mark.parametrize(
    "case, shown",
    [
        ("warn", "UserWarning: careful"),
        ("raise_in_a_thread", "ZeroDivisionError: in a thread"),
        ("raise_where_nobody_sees", "RuntimeWarning: coroutine .* was never awaited"),
        ("end_early", r"finished ranks \(\)"),
    ],
)
def test_what_else_fails_a_job(case, shown, fresh):
    with pytest.raises(jobs.JobFailed, match=shown):
        jobs.run_job(f"jobs_cases:{case}", 2, fresh=fresh)


@mostly_kept
def test_hang_shows_stacks_and_leaves_nobody(fresh):
    with pytest.raises(jobs.JobFailed, match=r"(?s)in hang.*in hang" if not fresh else "in hang"):
        jobs.run_job("jobs_cases:hang", 2, deadline_s=4, fresh=fresh)


@mostly_kept
def test_orphan_is_found_and_ended(monkeypatch, fresh):
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    with pytest.raises(jobs.JobFailed, match="left processes behind: .*sleep"):
        jobs.run_job("jobs_cases:leave_an_orphan", 2, fresh=fresh)


def test_success_where_failure_was_expected():
    with pytest.raises(jobs.JobFailed, match="expected to fail"):
        jobs.run_job("jobs_cases:succeed", 1, args={"word": ""}, expect_failure=True)


@pytest.mark.parametrize(
    "what, shown",
    [
        ("thread", "threads: lonely"),
        exhaustive("file", "descriptors: .* -> /dev/null"),
        ("communicator", "duplicates of the communicator: were 0, are 1"),
        exhaustive("message", "messages: were False, are True"),
        ("signal handler", "signal handlers: 15 was"),
        exhaustive("priority", "priority: were .*, are "),
        exhaustive("folder", "folder: were .*, are /"),
    ],
)
def test_what_a_case_leaves_behind_fails_it(what, shown):
    with pytest.raises(jobs.JobFailed, match=f"leave left behind: .*{shown}"):
        jobs.run_job("jobs_cases:succeed", 1, args={"word": "before"})
        jobs.run_job("jobs_cases:leave", 1, args={"what": what})


def test_what_a_case_may_change_is_put_back():
    jobs.run_job("jobs_cases:change,unchanged", 2)
    jobs.run_job("jobs_cases:unchanged", 2)


@on_ranks(1, 2, "openmpi-2")
@pytest.mark.parametrize("numbers", [[1], [2, 3]])
def test_a_test_on_ranks_has_a_communicator_and_arguments(comm, numbers, tmp_path):
    assert comm.allreduce(1) == comm.size in (1, 2) and comm.allgather(numbers) == [numbers] * comm.size
    assert set(comm.allgather(tmp_path)) == {tmp_path} and tmp_path.is_dir()


ON_RANKS = """
from marks import on_ranks

@on_ranks(1, 2)
def test_ranks(comm):
    expected = 1
    assert comm.size == expected

@on_ranks(2, env={"WORD": "here"})
def test_alone(comm):
    import os
    assert os.environ["WORD"] == "here"
"""


@pytest.mark.parametrize(
    "chosen, failed, passed",
    [(["::test_ranks[2]"], 1, 0), (["", "-k", "test_alone"], 0, 1)],
    ids=["by name", "by words"],
)
def test_a_test_on_ranks_is_chosen_as_others_are_and_shows_where_a_rank_has_failed(chosen, failed, passed, tmp_path):
    script = tmp_path / "test_script.py"
    script.write_text(ON_RANKS)
    tests = processes.REPOSITORY / "tests"
    where, *options = chosen
    given = "-q", "-c", tests.parent / "pyproject.toml", "-p", "conftest", "-p", "no:cacheprovider"
    env = os.environ | {"PYTHONPATH": f"{tests}:{tmp_path}"}
    command = sys.executable, "-m", "pytest", *given, f"{script}{where}", *options
    done = commands.run(*command, env=env, timeout=100)
    assert done.returncode == bool(failed), done.stdout + done.stderr
    assert (f"{failed} failed" if failed else f"{passed} passed") in done.stdout, done.stdout
    if failed:
        for words in ("[rank 0]", "[rank 1]", ", line 7, in test_ranks", "assert 2 == 1", "comm.size", "test_ranks[2]"):
            assert words in done.stdout, done.stdout

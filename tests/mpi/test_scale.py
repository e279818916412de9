"""`overlap scale run` on ranks of its own, under mpiexec and from a SLURM script; then `report`."""

import json
import os
import shlex
import sys

import commands
import processes
import pytest
from commands import DEADLINE_S, overlap, process
from marks import exhaustive, on_ranks

from overlap import InputError
from overlap.tools.bench.rank import first_ranks

SMALL = "--slices 5 --shape 20 24 --rounds 2"


def scale(*words, **options):
    """Run `overlap scale` with words that stand in texts, and with paths and numbers."""
    split = [shlex.split(word) if isinstance(word, str) else [word] for word in words]
    return overlap("scale", *(one for several in split for one in several), **options)


def points(path):
    """(workers, ranks) of a complete report's cases, in order, and the report."""
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert content["format"] == "overlap-report" and content["complete"]
    assert content["machine"]["cores"] and content["packages"]["mpi4py"] and content["mpi"]["fftw"]
    assert "commit" in content and "job" in content
    for record in content["cases"]:
        assert record["max_rel_error"] < 1e-11
        assert len(record["binding"]) == record["ranks"]
        assert all(place["host"] and place["cores"] for place in record["binding"])
        assert all(len(record["seconds"][mode]) == record["rounds"] for mode in record["modes"])
        low, high = record["spread"]["off"]
        assert 0 < low <= record["off_s"] <= high
    return [(record["workers"], record["ranks"]) for record in content["cases"]], content


@pytest.mark.parametrize("workers", [[1], exhaustive([1, 2])])
def test_matrix_on_shared_memory_then_its_report(workers, tmp_path):
    path = tmp_path / "scale.json"
    status, out, err = scale(
        "run operation", SMALL, "--ranks 1 2 --workers", *workers, "--modes poll --passes 2 --json", path
    )
    assert status == 0, err
    found, content = points(path)
    assert found == [(count, ranks) for count in workers for ranks in (1, 2)]
    for record in content["cases"]:
        assert record["rounds"] == 4 and record["modes"] == ["off", "poll"]
        assert record["block_s"] is record["auto_s"] is None and record["poll_s"] > 0
        assert record["link"] == "shm"
    assert [len(place["cores"]) for place in content["cases"][1]["binding"]] == [1, 1]
    assert "20 x 24" in out and [entry.name for entry in tmp_path.iterdir()] == ["scale.json"]

    status, out, err = scale("report", path, path, "--out", tmp_path / "drawn")
    assert status == 0, err
    drawn = sorted(entry.name for entry in (tmp_path / "drawn").iterdir())
    assert drawn == ["acceleration.png", "gain.png", "report.html", "time.png"]


@pytest.mark.parametrize("mpi", ["mpich", exhaustive("openmpi")], indirect=True)
def test_under_mpiexec_the_first_ranks_of_the_job(mpi, tmp_path):
    path = tmp_path / "scale.json"
    launcher, environ = processes.launcher_command(mpi, tmp_path)
    status, out, err = scale(
        "run fft2",
        SMALL,
        "--ranks 3 1 2 --json",
        path,
        launcher=[*launcher, "-n", "3"],
        env=environ | {"PBS_JOBID": "12.head"},
    )
    assert status == 0, err
    found, content = points(path)
    assert found == [(1, 1), (1, 2), (1, 3)]
    assert content["job"] == {"scheduler": "pbs", "id": "12.head"}
    assert {record["link"] for record in content["cases"]} == {"mpiexec"}
    assert out.count("ranks, N = 1 worker") == 1  # one rank prints
    assert out.count("more workers than cores") == (len(os.sched_getaffinity(0)) < 3)


def test_more_ranks_than_the_job_has(tmp_path):
    launcher, environ = processes.launcher_command("mpich")
    status, _, err = scale(
        "run fft2", SMALL, "--ranks 2 4 --json", tmp_path / "scale.json", launcher=[*launcher, "-n", "2"], env=environ
    )
    assert status == 1
    assert err.count("expected 4 ranks, received 2") == 1 and "Traceback" not in err
    content = json.loads((tmp_path / "scale.json").read_text())
    assert not content["complete"] and len(content["cases"]) == 1  # what was measured stays


@pytest.mark.parametrize("ranks", [exhaustive(0), 2])
def test_a_report_that_cannot_be_written(ranks, tmp_path):
    """It is refused before anything is measured, by every rank."""
    launcher, environ = processes.launcher_command("mpich")
    status, out, err = scale(
        "run fft2",
        SMALL,
        "--ranks 1 2 --json",
        tmp_path / "no" / "where.json",
        launcher=[*launcher, "-n", ranks] if ranks else (),
        env=environ,
    )
    assert status == 2 and "its folder does not exist" in err
    assert "Traceback" not in err and not out


def test_links_cannot_be_made_under_mpiexec():
    launcher, environ = processes.launcher_command("mpich")
    status, _, err = scale("run fft2", SMALL, "--link 2gbit", launcher=[*launcher, "-n", "2"], env=environ)
    assert status == 1 and err.count("leave out one of the two") == 1


@on_ranks(3)
def test_idle_ranks_wait_and_share_errors(comm):
    def first_ranks_of(ranks):
        with first_ranks(comm, ranks) as part:
            assert (part is not None) == (comm.rank < ranks)
            return 0 if part is None else part.allreduce(1 + comm.rank)

    assert first_ranks_of(2) == (3 if comm.rank < 2 else 0)
    assert first_ranks_of(comm.size) == 6
    with pytest.raises(InputError, match="too small"), first_ranks(comm, 1) as part:
        if part is not None:
            raise InputError("too small")
    assert first_ranks_of(1) == (1 if comm.rank == 0 else 0)  # all are in step again


SRUN = """\
#!/bin/sh
# As srun: so many tasks, each told its rank by the MPI library's own launcher here.
for word in "$@"; do
    shift
    case $word in
        --ntasks=*) tasks=${word#*=} ;;
        --*) echo "$word" >> "$STUB_LOG" ;;
        *) exec "$STUB_MPIEXEC" -n "$tasks" "$word" "$@" ;;
    esac
done
"""


def test_the_slurm_script_runs_under_a_stub_srun(tmp_path):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "srun").write_text(SRUN)
    (bin_folder / "srun").chmod(0o755)
    status, out, err = scale(
        "submit operation",
        SMALL,
        "--scheduler slurm --mpi mpich --nodes 1 --ranks-per-node 2 --cores-per-node 4 --dedicated-core --out",
        tmp_path,
    )
    assert status == 0, err
    script = tmp_path / "scale-1.sh"
    assert out.splitlines()[0] == f"sbatch {script}" and os.access(script, os.X_OK)
    launcher, environ = processes.launcher_command("mpich")
    log = tmp_path / "srun.log"
    environ |= {"PATH": f"{bin_folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    environ |= {"STUB_MPIEXEC": launcher[0], "STUB_LOG": str(log)}
    with process("bash", script, env=environ) as job:
        _, err = job.communicate(timeout=DEADLINE_S)
    assert job.returncode == 0, err
    assert "--cpus-per-task=2" in log.read_text().split()
    found, content = points(tmp_path / "scale-1.json")
    assert found == [(1, 2)] and content["job"] == {"scheduler": "slurm", "id": "77"}


@pytest.mark.exhaustive
def test_a_benchmark_of_the_repository():
    done = commands.run(sys.executable, processes.REPOSITORY / "bench" / "overhead.py", "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("wait", "poll", "plan_us"):
        assert word in done.stdout


def test_a_sparse_solver_on_a_grid_per_rank(tmp_path):
    status, out, err = scale(
        "run cg --shape 8 8 8 --ranks 1 2 --rounds 1 --weak --matrix elastic --json",
        tmp_path / "scale.json",
        "--picture",
        tmp_path / "scale.png",
    )
    assert status == 0, err
    content = json.loads((tmp_path / "scale.json").read_text(), parse_constant=pytest.fail)
    assert content["complete"] and [record["ranks"] for record in content["solvers"]] == [1, 2]
    assert [record["shape"] for record in content["solvers"]] == [[8, 8, 8], [16, 8, 8]]
    assert "efficiency" in out and (tmp_path / "scale.png").stat().st_size > 10_000
    status, _, err = scale("run fft2", SMALL, "--weak --json", tmp_path / "scale.json")
    assert status == 2 and "expected a workload of spmv, cg, mgcg, received fft2" in err

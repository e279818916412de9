"""`overlap scale submit`: the scripts are sound and say what was asked; bad wishes are named."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import commands
import pytest

from overlap.tools import cli
from overlap.tools.scale.submit import LAUNCHERS

BASE = ["--nodes", "1", "4", "--cores-per-node", "48", "--ranks-per-node", "4"]


def submit(tmp_path, scheduler, mpi, *more):
    """Write scripts; their texts by number of nodes."""
    given = f"scale submit operation --scheduler {scheduler} --mpi {mpi}".split()
    assert cli.main([*given, *BASE, "--out", str(tmp_path), *more]) == 0
    return {int(path.stem.partition("-")[2]): path.read_text() for path in tmp_path.glob("*.sh")}


def sound(path):
    """Bash parses it; shellcheck, where there is one, finds nothing."""
    subprocess.run(["bash", "-n", path], check=True)
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin")
    if checker:
        done = commands.run(checker, path)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("scheduler, mpi", LAUNCHERS)
@pytest.mark.parametrize(
    "more",
    [(), ("--queue", "short", "--account", "proj-1", "--setup", "module load a\nexport B='c d'", "--dedicated-core")],
)
def test_scripts_are_sound(scheduler, mpi, more, tmp_path):
    folder = tmp_path / "it's here"
    scripts = submit(folder, scheduler, mpi, *more)
    assert set(scripts) == {1, 4}
    for nodes, text in scripts.items():
        sound(folder / f"scale-{nodes}.sh")
        assert "\n\n\n" not in text
        directives = [line for line in text.splitlines() if re.match("#(SBATCH|PBS|PJM) ", line)]
        head = text.splitlines()[: len(directives) + 1]
        assert head == ["#!/bin/bash", *directives]  # schedulers stop at the first other line
        assert ("short" in "".join(directives)) == bool(more)
        assert f"--ranks {4 * nodes} --workers {11 if more else 12} " in text
        assert "OMP_NUM_THREADS=1" in text
        # the launcher is told all ranks, or the directives are
        assert re.search(rf"(-n |ntasks=){4 * nodes} ", text)


@pytest.mark.parametrize(
    "scheduler, mpi, words",
    [
        ("slurm", "openmpi", "--nodes=4; --ntasks-per-node=4; --cpus-per-task=12; srun --mpi=pmix; --cpu-bind=cores"),
        ("slurm", "openmpi", "--threads-per-core=1"),
        ("slurm", "mpich", "srun --mpi=pmi2; MPIR_CVAR_ASYNC_PROGRESS=0"),
        ("slurm", "intel", "srun --mpi=pmi2; I_MPI_PIN=0; I_MPI_ASYNC_PROGRESS=0"),
        ("pbs", "openmpi", "select=4:ncpus=48:mpiprocs=4:ompthreads=1; walltime=1:02:03"),
        ("pbs", "openmpi", '--map-by ppr:4:node:PE=12 --bind-to core; cd "$PBS_O_WORKDIR"'),
        ("pbs", "mpich", "mpiexec -n 16 -ppn 4 -bind-to core:12"),
        ("pbs", "intel", "I_MPI_PIN_DOMAIN=auto; I_MPI_PIN_CELL=core"),
        ("pjm", "fujitsu", '-L "node=4"; "max-proc-per-node=4"; "proc=16"; "elapse=1:02:03"'),
        ("pjm", "fujitsu", "--mca opal_progress_thread_mode 0"),
        ("pjm", "openmpi", '-machinefile "$PJM_O_NODEINF"; ppr:4:node:PE=12'),
    ],
)
def test_scripts_place_bind_and_switch_progress_threads_off(scheduler, mpi, words, tmp_path):
    text = submit(tmp_path, scheduler, mpi, "--time", "1:02:03")[4]
    for word in words.split("; "):
        assert word in text, word


def test_what_is_measured_is_passed_on(tmp_path):
    more = shlex.split("--shape 96 80 --slices 9 --modes poll --rounds 7 --dtype f4")
    text = submit(tmp_path, "slurm", "mpich", *more)[1]
    passed = "run operation", "--shape 96 80", "--slices 9", "--modes off poll", "--rounds 7", "--dtype f4"
    for words in (*passed, f"--json {tmp_path}/scale-1.json"):
        assert words in text, words


def test_a_core_of_its_own_is_explained(tmp_path):
    shared = submit(tmp_path, "slurm", "mpich")[1]
    assert "12 per rank, and as many workers" in shared and "C + T/N" in shared
    own = submit(tmp_path, "slurm", "mpich", "--dedicated-core")[1]
    assert "12 per rank, 11 for workers and one for the communicator" in own
    assert "--cpus-per-task=12" in own  # all are bound to the rank


@pytest.mark.parametrize(
    "more, complaint",
    [
        (["--scheduler", "lsf", "--mpi", "mpich"], "invalid choice: 'lsf'"),
        (["--scheduler", "slurm", "--mpi", "lam"], "invalid choice: 'lam'"),
        (["--scheduler", "slurm", "--mpi", "fujitsu"], "one of openmpi, mpich, intel, received fujitsu"),
        (["--scheduler", "slurm", "--mpi", "mpich", "--time", "soon"], "expected a time H:MM:SS"),
        (["--scheduler", "slurm", "--mpi", "mpich", "--queue", "a\nb"], "expected the queue's name"),
        (["--scheduler", "slurm", "--mpi", "mpich", "--nodes", "0"], "expected an integer >= 1"),
        (
            ["--scheduler", "slurm", "--mpi", "mpich", "--ranks-per-node", "49"],
            "expected at least 1 core(s) per rank, received 48 cores for 49 ranks",
        ),
        (
            ["--scheduler", "slurm", "--mpi", "mpich", "--ranks-per-node", "48", "--dedicated-core"],
            "expected at least 2 core(s) per rank, one of them for its communicator",
        ),
        (["--scheduler", "slurm", "--mpi", "mpich", "--dtype", "c16"], "dtype of operation"),
    ],
)
def test_bad_wishes(more, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["scale", "submit", "operation", *BASE, "--out", str(tmp_path / "out"), *more])
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- templates -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "pjm"])
def test_an_edited_template_is_used(scheduler, tmp_path, capsys):
    assert cli.main(["scale", "template", scheduler]) == 0
    own = capsys.readouterr().out
    mpi = next(mpi for where, mpi in LAUNCHERS if where == scheduler)
    plain = submit(tmp_path / "plain", scheduler, mpi, "--template", str(_file(tmp_path, own)))
    assert plain == submit(tmp_path / "plain", scheduler, mpi)
    edited = own.replace("$setup", "ulimit -s $${STACK:-unlimited}  # $nodes node(s)")
    text = submit(tmp_path, scheduler, mpi, "--template", str(_file(tmp_path, edited)))[4]
    assert "ulimit -s ${STACK:-unlimited}  # 4 node(s)" in text


def _file(folder, text):
    path = folder / "site.template"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text, complaint",
    [("srun $command $qos ${HOME}", "received HOME, qos"), ("echo $(date) $command", "received another $")],
)
def test_templates_with_unknown_fields(text, complaint, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        submit(tmp_path, "slurm", "mpich", "--template", str(_file(tmp_path, text)))
    assert stop.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert complaint in error and "site.template" in error and "expected" in error
    assert not list(tmp_path.glob("*.sh"))


def test_a_template_that_is_not_there(tmp_path, capsys):
    given = shlex.split("scale submit fft2 --scheduler pbs --mpi mpich --template")
    assert cli.main([*given, str(tmp_path / "none"), *BASE]) == 1
    assert "No such file" in capsys.readouterr().err

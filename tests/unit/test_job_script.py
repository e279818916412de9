"""The job script of the cluster's page: a shell accepts it, Slurm would, and it fits the program below it."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
TEXT = PAGE.read_text()
[SCRIPT] = re.findall(r"^```sh\n(#!/bin/bash\n.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def sbatch():
    """Return a parser of the options of sbatch that scripts of this kind use, as sbatch's manual has them."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    for name in ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("job-name", "output", "error", "partition", "account"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--hint", choices=["compute_bound", "memory_bound", "multithread", "nomultithread"])
    parser.add_argument("--time", type=re.compile(r"(\d+-)?\d{2}:[0-5]\d:[0-5]\d").fullmatch)
    return parser


def test_a_shell_accepts_it():
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin")
    for command in [["bash", "-n"], *([[checker, "--shell=bash", "-"]] if checker else [])]:
        done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_slurm_reads_all_directives():
    lines = SCRIPT.splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    # Slurm stops looking at the first line that is neither a comment nor blank.
    assert lines[0] == "#!/bin/bash" and lines[1 : 1 + len(directives)] == directives
    options = sbatch().parse_args([line.removeprefix("#SBATCH ") for line in directives])
    assert options.time is not None
    words = re.search(r"nodes of (\d+) cores with (\w+) sockets", TEXT)
    assert options.ntasks_per_node * options.cpus_per_task == int(words[1])
    assert options.ntasks_per_node == {"one": 1, "two": 2}[words[2]]


def test_ranks_get_their_cores_and_the_program_uses_them():
    launches = re.findall(r"^srun (.*)$", SCRIPT, re.MULTILINE)
    assert len(launches) == 2
    assert all('--cpus-per-task="$SLURM_CPUS_PER_TASK" --cpu-bind=cores ENV/bin/' in launch for launch in launches)
    [program] = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert 'os.environ.get("SLURM_CPUS_PER_TASK"' in program and "workers=workers" in program

"""`overlap scale submit`: writes job scripts for a cluster, one per number of nodes.

A script is a template of the scheduler (`templates/`, or a site's own file: `string.Template`, its
own dollars doubled) filled with `fields`. Lines that depend on both the scheduler and the MPI library are in
`LAUNCHERS`, those that depend on the library alone in `ENVIRONMENT`.

Progress. The communicator thread of `overlap` moves the messages, in a blocking call or by testing.
A progress thread of the MPI library's own would only compete with it for a core, and demands
MPI_THREAD_MULTIPLE; where a library has one, it is switched off.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

from ...errors import InputError

SCHEDULERS = {"slurm": "sbatch", "pjm": "pjsub", "pbs": "qsub"}  # name: command that submits a script

# Names in braces are those of `fields`.
LAUNCHERS = {
    # Slurm's own launcher places and binds ranks. Open MPI 5 supports PMIx only, MPICH and Intel MPI support PMI2.
    ("slurm", "openmpi"): "srun --mpi=pmix {slurm}",
    ("slurm", "mpich"): "srun --mpi=pmi2 {slurm}",
    ("slurm", "intel"): "srun --mpi=pmi2 {slurm}",
    # Under other schedulers the MPI library's launcher does so; under PBS all three read the nodes from PBS_NODEFILE.
    ("pbs", "openmpi"): "mpiexec -n {ranks} {openmpi}",
    ("pbs", "mpich"): "mpiexec -n {ranks} -ppn {ranks_per_node} -bind-to core:{cores_per_rank}",
    ("pbs", "intel"): "mpiexec -n {ranks}",
    # Fujitsu's launcher places and binds ranks as the job asked for; the report shows the cores of each rank.
    ("pjm", "fujitsu"): "mpiexec -n {ranks} --mca opal_progress_thread_mode 0",
    ("pjm", "openmpi"): 'mpiexec -n {ranks} -machinefile "$PJM_O_NODEINF" {openmpi}',
}
_PARTS = {
    "slurm": "--nodes={nodes} --ntasks={ranks} --ntasks-per-node={ranks_per_node} "
    "--cpus-per-task={cores_per_rank} --threads-per-core=1 --cpu-bind=cores",
    "openmpi": "--map-by ppr:{ranks_per_node}:node:PE={cores_per_rank} --bind-to core",
}
ENVIRONMENT = {  # for each library: lines of the script
    "openmpi": "# Open MPI has no progress thread to switch off.",
    "mpich": "# No progress thread: overlap's communicator does its work.\nexport MPIR_CVAR_ASYNC_PROGRESS=0",
    "intel": "# No progress thread: overlap's communicator does its work.\nexport I_MPI_ASYNC_PROGRESS=0",
    "fujitsu": "# No assistant core (opal_progress_thread_mode): overlap's communicator does its\n"
    "# work. No file for each silent rank.\n"
    "export PLE_MPI_STD_EMPTYFILE=off",
}
_PINNING = {
    ("slurm", "intel"): "# Slurm binds. It may need I_MPI_PMI_LIBRARY, your site's libpmi2.so.\nexport I_MPI_PIN=0",
    ("pbs", "intel"): "# A node's cores are dealt out to its ranks in equal shares.\n"
    "export I_MPI_PIN_CELL=core\nexport I_MPI_PIN_DOMAIN=auto",
}
_DIRECTIVES = {
    "slurm": {"queue": "#SBATCH --partition={}", "account": "#SBATCH --account={}"},
    "pbs": {"queue": "#PBS -q {}", "account": "#PBS -A {}"},
    "pjm": {"queue": '#PJM -L "rscgrp={}"', "account": "#PJM -g {}"},
}
_CORES = {  # key: whether the communicator has a core of its own
    False: """\
# Cores: {cores_per_rank} per rank, and as many workers.
# The communicator thread has no core of its own: polling, it sleeps between two polls (towards
# max(C, T)); in a blocking call it takes a worker's core token while it waits (C + T/N).""",
    True: """\
# Cores: {cores_per_rank} per rank, {workers} for workers and one for the communicator thread.
# Polling, that never waits for a worker to make room; the price is that C is computing on
# {workers} cores, which is also the report's N.""",
}


@dataclass(frozen=True, kw_only=True)
class JobLayout:
    """Describes how ranks are placed on nodes.

    Attributes
    ----------
    nodes, ranks_per_node, cores_per_node : int
    dedicated_core : bool
        Leave one core of each rank to its communicator thread.

    Raises
    ------
    InputError
        A node has too few cores.
    """

    nodes: int
    ranks_per_node: int
    cores_per_node: int
    dedicated_core: bool = False

    def __post_init__(self) -> None:
        least = 2 if self.dedicated_core else 1
        if self.cores_per_rank < least:
            raise InputError(
                f"expected at least {least} core(s) per rank"
                f"{', one of them for its communicator' if self.dedicated_core else ''}, received "
                f"{self.cores_per_node} cores for {self.ranks_per_node} ranks per node"
            )

    @property
    def ranks(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def cores_per_rank(self) -> int:
        """Return the number of cores that are bound to each rank; cores that are left over stay idle."""
        return self.cores_per_node // self.ranks_per_node

    @property
    def workers(self) -> int:
        """Return the number of workers per rank."""
        return self.cores_per_rank - self.dedicated_core


def fields(
    layout: JobLayout,
    *,
    scheduler: str,
    mpi: str,
    command: Sequence[str],
    name: str,
    time: str,
    queue: str | None = None,
    account: str | None = None,
    setup: str = "",
) -> dict[str, str]:
    """Collect the fields that a template may refer to, {name: text}.

    Parameters
    ----------
    layout : JobLayout
    scheduler, mpi : str
        A key of `LAUNCHERS`.
    command : list of str
        The command of each rank.
    name : str
        The name of the job.
    time : str
        ``H:MM:SS``.
    queue, account : str, optional
    setup : str
        Shell lines, such as ``module load ...``.

    Raises
    ------
    InputError
        The scheduler and the MPI library do not work together, or a text would break the script.
    """
    if (scheduler, mpi) not in LAUNCHERS:
        fitting = [library for where, library in LAUNCHERS if where == scheduler]
        raise InputError(
            f"expected --mpi of {scheduler} to be one of {', '.join(fitting)}, "
            f"received {mpi}: for others edit a template"
        )
    if not re.fullmatch(r"\d+:[0-5]\d:[0-5]\d", time):
        raise InputError(f"expected a time H:MM:SS, received {time!r}")
    directives = []
    for kind, value in (("queue", queue), ("account", account)):
        if value is not None:
            if not re.fullmatch(r"[\w.:@+=-]+", value):
                raise InputError(f"expected the {kind}'s name, received {value!r}")
            directives.append(_DIRECTIVES[scheduler][kind].format(value))
    values = {
        key: str(getattr(layout, key))
        for key in ("nodes", "ranks", "ranks_per_node", "cores_per_node", "cores_per_rank", "workers")
    }
    parts = {part: text.format(**values) for part, text in _PARTS.items()}
    environment = [ENVIRONMENT[mpi], _PINNING.get((scheduler, mpi)), "export OMP_NUM_THREADS=1"]
    return values | {
        "name": name,
        "time": time,
        "directives": "\n".join(directives),
        "setup": setup,
        "comment": _CORES[layout.dedicated_core].format(**values),
        "environment": "\n".join(filter(None, environment)),
        "launch": LAUNCHERS[scheduler, mpi].format(**values, **parts),
        "command": shlex.join(command),
    }


def own_template(scheduler: str) -> str:
    """Read the template that comes with the package."""
    return resources.files(__package__).joinpath("templates", f"{scheduler}.sh").read_text("utf-8")


def script(values: Mapping[str, str], *, scheduler: str, template: str | None = None) -> str:
    """Fill the template of the scheduler, or that of a file.

    Raises
    ------
    InputError
        The template refers to a name that is not in `values`.
    OSError
    """
    text = own_template(scheduler) if template is None else Path(template).read_text("utf-8")
    filled = Template(text)
    where = template or scheduler
    if not filled.is_valid():
        raise InputError(
            f"template {where}: expected $name, ${{name}}, or $$ for a dollar of the shell, received another $"
        )
    if unknown := sorted(set(filled.get_identifiers()) - set(values)):
        raise InputError(
            f"template {where}: expected fields among {', '.join(sorted(values))}, "
            f"received {', '.join(unknown)} ($$ is a dollar of the shell)"
        )
    lines = filled.substitute(values).splitlines()
    return (
        "\n".join(line for line, after in zip(lines, [*lines[1:], None]) if line or after) + "\n"
    )  # lines of empty fields are dropped

"""What a plan has from a tuning file, and keeps in it: the same on all ranks.

Rank 0 alone touches the file and hands what it read to the others. A plan made from an entry uses
its settings and makes its FFTW plans with the entry's wisdom and no other, so that they are those of
the run that tuned it, whatever else this process has planned.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mpi4py import MPI
from numpy.typing import DTypeLike

from ...arrays import Weights, checked
from ...errors import InputError
from ...runtime import Runtime
from ...runtime.control.control import Control
from ...timing.processor import cpu_model
from ..engine import fftw as local
from ..engine.wisdom import joined
from . import tuning_file as store
from .candidates import Tunable
from .settings import Settings, Tuned

VARIABLE = "OVERLAP_TUNING"


class Tuning:
    """A plan's tuning file. Making one is collective.

    Parameters
    ----------
    runtime : Runtime
    path : str or None
        None: no file.
    plan : dict
        What is tuned, for the file.
    dtype : dtype
        Its precision is that of the wisdom.

    Attributes
    ----------
    weights : tuple of numbers or None
        What `keep_weights` has kept for this plan.
    grid : tuple of int or None
        The process grid of the entry, or of the plan for one that `keep` is to make.

    Raises
    ------
    InputError
        On all ranks, when the file cannot be used.
    """

    def __init__(self, runtime: Runtime, path: str | None, plan: dict, dtype: DTypeLike) -> None:
        self.path = path
        self._runtime = runtime
        self._dtype = dtype
        self._plan = plan
        self._entry: dict | None = None
        self._reason: str | None = None
        self._machine: dict | None = None
        self.weights: Weights = None
        self.grid: tuple[int, int] | None = None
        self._known: list[str] = []  # wisdom of an earlier entry, for transforms that are not tuned anew
        if path is None:
            return
        control = runtime.control
        self._machine = machine(control)
        with runtime.together("reading a tuning file"):
            found = None if control.rank > 0 else store.find(store.read(path), plan, self._machine)
            self._entry, self._reason = control.bcast(found)
            if control.rank == 0 and not os.path.exists(path):
                print(
                    f"overlap: no tuning file {path!r} yet, so the plan is not tuned: its method tune() makes one",
                    file=sys.stderr,
                )
            self.weights = checked((self._entry or {}).get("weights"), control.size)[0]
            if self._entry is not None and not self._entry["transforms"]:
                self._entry, self._reason = None, "its entry for this plan has weights alone"
            if self._entry is not None:
                with self.planning() as accepted:
                    if not accepted:
                        raise InputError(
                            f"expected wisdom that FFTW {local.fftw_version()} accepts, received other in {path!r}"
                        )
                self.grid = self._grid_of(self._entry)

    def _grid_of(self, entry: dict[str, Any]) -> tuple[int, int] | None:
        """Return the grid of an entry, whose ranks are this plan's."""
        grid = entry.get("grid")
        if grid is not None and grid[0] * grid[1] != self._plan["ranks"]:
            raise InputError(f"expected a grid of {self._plan['ranks']} ranks, received {grid} in {self.path!r}")
        return grid and tuple(grid)

    def __str__(self) -> str:
        if self._entry is not None:
            return f"tuning: from {self.path}"
        return f"tuning: {self.path} is not used: {self._reason}"

    def settings(self, name: str) -> tuple[Settings, Tuned] | None:
        """Return the settings of a transform and what tuning gained, or None."""
        values = None if self._entry is None else self._entry["transforms"].get(name)
        return None if values is None else store.settings_of(values)

    def planning(self) -> AbstractContextManager:
        """While kernels are made: FFTW plans as the tuning run did, if an entry is used."""
        if self._entry is None:
            return nullcontext()
        return local.only_wisdom(self._dtype, self._entry["wisdom"])

    def forget(self) -> None:
        """Plan as if there were no entry, until `keep` makes one."""
        if self._entry is not None:
            self._known = [self._entry["wisdom"]]
        self._entry, self._reason = None, "it has no entry for this plan"

    def problem(self) -> str | None:
        """Why the file cannot be written, or None; only rank 0 looks."""
        if self.path is None or self._runtime.control.rank > 0:
            return None
        return store.unwritable(self.path)

    def keep_weights(self, weights: Weights) -> None:
        """Keep weights that were measured in the file, if there is one, for plans that ask for such (collective)."""
        with self._runtime.together("keeping weights"):
            self.weights, self._plan = weights, self._plan | {"weights": "measure"}
            if self.path is None or self._runtime.control.rank > 0:
                return
            found = {"plan": self._plan, "machine": self._machine, "transforms": {}, "wisdom": ""}
            if self._entry is not None and self._entry["plan"] == self._plan:
                found = self._entry
            try:
                store.write(self.path, found | {"weights": list(weights or (1,) * self._runtime.control.size)})
            except (InputError, OSError) as error:
                raise InputError(f"expected to write a tuning file, received {self.path!r}: {error}") from None

    def keep(self, transforms: dict[str, Tunable], shapes: tuple) -> None:
        """Keep what was found as the entry, and in the file if there is one (collective).

        Parameters
        ----------
        transforms : dict
            Name to tuned `Transform`.
        shapes : tuple
            What this rank's FFTW plans depend on: ranks with the same make the same plans.
        """
        control = self._runtime.control
        everybodys = control.allgather(shapes)
        first = everybodys.index(everybodys[control.rank]) == control.rank
        texts = control.gather(local.wisdom(self._dtype) if first else None)
        with self._runtime.together("keeping what tuning found"):
            if control.rank == 0:
                self._entry = {
                    "plan": self._plan,
                    "machine": self._machine,
                    "transforms": {
                        name: store.record(transform.settings, transform.tuned)
                        for name, transform in transforms.items()
                        if transform.tuned is not None
                    },
                    "wisdom": joined([*filter(None, texts or ()), *self._known]),
                }
                if self.weights is not None:
                    self._entry["weights"] = list(self.weights)
                if self.grid is not None:
                    self._entry["grid"] = list(self.grid)
            self._entry = control.bcast(self._entry)
            if control.rank == 0 and self.path is not None:
                try:
                    store.write(self.path, self._entry)
                except (InputError, OSError) as error:
                    raise InputError(f"expected to write a tuning file, received {self.path!r}: {error}") from None


def path_of(tuning: object) -> object:
    """Return the tuning file requested, by name or through the environment; None or "" for none."""
    path = os.environ.get(VARIABLE) or None if tuning is None else tuning
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def machine(control: Control) -> dict:
    """Tell what else a tuned plan depends on (collective; the same on all ranks).

    ``link`` is the environment's OVERLAP_LINK: what joins the hosts, where their names do not tell.
    `overlap links` and the commands set it to the rate.
    """
    hosts = control.allgather(MPI.Get_processor_name())
    names = list(dict.fromkeys(hosts))
    library = MPI.Get_library_version().split("\n")[0].strip("\0")
    return control.bcast(
        {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "cores_of_rank": control.minimum(len(os.sched_getaffinity(0))),
            "hosts": len(names),
            "ranks_per_host": max(map(hosts.count, names)),
            "neighbours_share_host": hosts == sorted(hosts, key=names.index),
            "link": os.environ.get("OVERLAP_LINK", ""),
            "mpi": " ".join(library.split()),
            "fftw": local.fftw_version(),
        }
    )

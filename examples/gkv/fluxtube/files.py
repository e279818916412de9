"""Checkpoints, and the output file.

A checkpoint is an HDF5 file behind a user block that holds the SHA-256 of all that follows. It is written
under another name, flushed to the disk and then renamed: a file of a checkpoint's name is whole, unless
the disk spoils it later, which the digest shows. The last two are kept. f is written and read block by
block, so any number of ranks can go on from it; the same number goes on bit for bit.

The output is an HDF5 file with named axes (dimension scales), as netCDF-4 has them: xarray opens it.
"""

import hashlib
import json
import os
from pathlib import Path

import h5py
import numpy as np

from .config import ConfigError

KEPT = 2
USER_BLOCK = 512
VERSION = 1
PHYSICS = ("plasma", "grid", "time", "start")  # sections that a checkpoint belongs to


class FileError(RuntimeError):
    """A folder or checkpoint cannot be made, or no checkpoint can be read."""


def make_folder(comm, folder):
    """Make the folder of a run (collective).

    Raises
    ------
    FileError
        On all ranks.
    """
    with Together(comm, f"expected to make {folder}") as together:
        if comm.rank == 0:
            with together.attempt():
                Path(folder).mkdir(parents=True, exist_ok=True)


def checkpoints(folder):
    """Paths of the checkpoints in a folder, the newest first."""
    return sorted(Path(folder).glob("checkpoint-*.h5"), reverse=True)


def write_checkpoint(folder, solver, history):
    """Write the state and the history so far (collective).

    Parameters
    ----------
    folder : path
    solver : Solver
    history : dict of list
        Samples by name, on rank 0.

    Raises
    ------
    FileError
        On all ranks.
    """
    comm, state = solver.comm, solver.state
    path = Path(folder) / f"checkpoint-{state.step:09d}.h5"
    partial = path.with_suffix(".partial")
    with Together(comm, f"expected to write {path}") as together:
        file = None
        if comm.rank == 0:
            with together.attempt():
                file = h5py.File(partial, "w", userblock_size=USER_BLOCK)
                data = file.create_dataset("f", state.global_shape, complex)
                for name, values in {"time": state.time, "step": state.step, "version": VERSION,
                                     "config": json.dumps(solver.config.as_dict())}.items():
                    file.attrs[name] = values
                for name, values in history.items():
                    file[f"history/{name}"] = np.array(values)
        for where, block in _blocks(comm, state):
            with together.attempt():
                data[where] = block
        if comm.rank == 0:
            with together.attempt():
                file.close()
                _seal(partial)
                os.replace(partial, path)
                _flush_folder(path.parent)
                for old in checkpoints(folder)[KEPT:]:
                    old.unlink()


def read_checkpoint(folder, solver):
    """Go on from the newest checkpoint that is whole (collective).

    Returns
    -------
    (history, remarks)
        As `write_checkpoint` was given it, on rank 0; and what was wrong with newer ones.

    Raises
    ------
    FileError
        On all ranks, when there is none.
    ConfigError
        On all ranks, when it is one of another run.
    """
    comm, state = solver.comm, solver.state
    history, remarks, found = {}, [], None
    if comm.rank == 0:
        for path in checkpoints(folder):
            problem = _problem(path)
            if problem is None:
                found = path
                break
            remarks.append(f"{path.name}: {problem}")
    with Together(comm, f"expected a checkpoint in {folder}") as together:
        if comm.rank == 0:
            with together.attempt():
                if found is None:
                    raise FileError("; ".join(remarks) or "found none")
    difference = attributes = None
    if comm.rank == 0:
        file = h5py.File(found)
        attributes = {name: file.attrs[name] for name in ("time", "step")}
        difference = _difference(json.loads(file.attrs["config"]), solver.config.as_dict())
    attributes, difference = comm.bcast((attributes, difference))
    if difference is not None:
        raise ConfigError(difference)
    state.time, state.step = float(attributes["time"]), int(attributes["step"])
    if comm.rank == 0:
        with file:
            for rank, where in enumerate(comm.gather(state.where)):
                block = file["f"][where]
                if rank == 0:
                    state.f[...] = block
                else:
                    comm.Send(block, rank)
            history = {name: list(values[()]) for name, values in file["history"].items()}
    else:
        comm.gather(state.where)
        comm.Recv(state.f, 0)
    return history, comm.bcast(remarks)


def _blocks(comm, state):
    """On rank 0, every rank's place and part of f in turn; nothing on the others, which send."""
    places = comm.gather(state.where)
    if comm.rank:
        comm.Send(state.f, 0)
        return
    for rank, where in enumerate(places):
        block = state.f
        if rank:
            block = np.empty([part.stop - part.start for part in where], complex)
            comm.Recv(block, rank)
        yield where, block


class Together:
    """What fails on rank 0 is raised on all ranks at the end; until then messages go on.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    expected : str
        Of what was to be done, for the `FileError`.
    """

    def __init__(self, comm, expected):
        self._comm, self._expected, self._error = comm, expected, None

    def attempt(self):
        """A context in which something may fail."""
        return _Attempt(self)

    def fail(self, error):
        self._error = self._error or error

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            text = self._comm.bcast(None if self._error is None else str(self._error))
            if text is not None:
                raise FileError(f"{self._expected}: {text}") from self._error


class _Attempt:
    def __init__(self, together):
        self._together = together

    def __enter__(self):
        pass

    def __exit__(self, kind, error, _):
        if isinstance(error, Exception):
            self._together.fail(error)
            return True
        return False


def _digest(file):
    """SHA-256 of what follows the user block."""
    file.seek(USER_BLOCK)
    return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _seal(path):
    """Write the digest into the user block, and all to the disk."""
    with open(path, "r+b") as file:
        digest = _digest(file)
        file.seek(0)
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _problem(path):
    """What is wrong with a checkpoint, or None."""
    try:
        with open(path, "rb") as file:
            expected = file.read(64)
            if len(expected) < 64 or expected != _digest(file):
                return "cut off or spoilt: its digest does not match"
        with h5py.File(path) as file:
            if file.attrs["version"] != VERSION:
                return f"expected version {VERSION}, received {file.attrs['version']}"
    except (OSError, KeyError) as error:
        return str(error)
    return None


def _difference(theirs, ours):
    """The first key in which a checkpoint's configuration differs, or None; it may end later."""
    for section in PHYSICS:
        for key, value in ours[section].items():
            other = theirs[section].get(key)
            if (section, key) != ("time", "end") and other != json.loads(json.dumps(value)):
                return f"{section}.{key}: expected {other!r} as of the checkpoint, received {value!r}"
    return None


# ---- output --------------------------------------------------------------------------------------

SERIES = {  # of the history: axes besides time, unit, meaning
    "dt": ((), "R/v_ti", "time step"),
    "S": (("ky",), "", "entropy of the perturbation"),
    "W": (("ky",), "", "energy of the potential"),
    "heat_flux": (("ky",), "n T v_ti (rho/R)^2", "radial heat flux of the ions"),
    "D": (("ky",), "", "production of entropy by collisions"),
    "losses": (("ky",), "", "production of entropy by the discrete operator"),
    "phi2": (("ky",), "(T/e rho/R)^2", "<|phi|^2>, both signs of ky"),
    "phi_middle": (("ky",), "T/e rho/R", "phi at z = 0 and kx = 0"),
    "zonal": (("kx",), "T/e rho/R", "<phi> at ky = 0"),
}


def write_output(path, solver, history):
    """Write the history and phi of the state, for xarray (collective)."""
    comm, state = solver.comm, solver.state
    solver.solve_fields(state.f)
    parts = comm.gather(None if solver.decomposition.velocity.rank else
                        (state.where[2:4], solver.fields.inner))
    if comm.rank:
        return
    phi = np.zeros(state.global_shape[2:], complex)
    for where, values in filter(None, parts):
        phi[where] = values
    path = Path(path)
    partial = path.with_suffix(".partial")
    with h5py.File(partial, "w") as file:
        file.attrs["config"] = json.dumps(solver.config.as_dict())
        units = {"time": "R/v_ti", "v": "v_ti", "mu": "T/B_ax", "z": "radian", "ky": "1/rho_ti",
                 "kx": "1/rho_ti"}
        for axis, values in {"time": history.get("time", []), **state.coords}.items():
            file[axis] = np.array(values, float)
            file[axis].make_scale(axis)
            file[axis].attrs["units"] = units[axis]

        def write(name, values, axes, unit, meaning):
            data = file.create_dataset(name, data=values)
            data.attrs["units"], data.attrs["long_name"] = unit, meaning
            for number, axis in enumerate(axes):
                data.dims[number].attach_scale(file[axis])

        for name, (axes, unit, meaning) in SERIES.items():
            if name in history:
                write(name, np.array(history[name]), ("time", *axes), unit, meaning)
        write("phi", phi, ("z", "ky", "kx"), "T/e rho/R", "potential at the end")
    os.replace(partial, path)

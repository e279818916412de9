"""Checkpoints: the state and the samples so far, in files whose damage is detected.

A checkpoint is an HDF5 file behind a user block that holds the SHA-256 of all that follows. It takes its name when it
is complete and on the disk, so it is whole unless it is damaged later, which the digest shows. The last two checkpoints
are kept. A run that reads a checkpoint checks the digest first, then every name, shape, type and value. If a checkpoint
is damaged, the one before it is used. f is written and read block by block, so any number of ranks can go on from it;
on the same number of ranks the results have the same bits.
"""

import hashlib
import json
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

import h5py
import numpy as np

from .config import ConfigError
from .diagnostics import SERIES
from .files import FileError, describe, together, writing

KEPT = 2
USER_BLOCK = 512
VERSION = 1
PHYSICS = ("plasma", "grid", "time", "start")  # sections that must be equal in the checkpoint's run


def paths(folder):
    """List the checkpoints in a folder, the newest first."""
    return sorted(Path(folder).glob("checkpoint-*.h5"), reverse=True)


def write(folder, solver, history):
    """Write the state and the samples so far (collective).

    Parameters
    ----------
    folder : path
    solver : Solver
    history : dict of list
        All samples of `Diagnostics.sample` by name; those of rank 0 are written.

    Raises
    ------
    FileError
        On all ranks; no part of the file is left.
    """
    comm, state = solver.comm, solver.state
    path = Path(folder) / f"checkpoint-{state.step:09d}.h5"
    with together(comm, f"expected to write {path}"):
        blocks = _blocks(comm, state)
        try:
            if comm.rank == 0:
                with writing(path, USER_BLOCK, _seal) as file:
                    _write_small_things(file, solver, history)
                    data = file.create_dataset("f", state.global_shape, complex)
                    for where, block in blocks:
                        data[where] = block
                _flush_folder(path.parent)
                _remove_old(path)
        finally:
            for _ in blocks:  # the other ranks send even if the file cannot be written
                pass


def _remove_old(path):
    """Remove all but the last checkpoints up to this one, and incomplete ones of killed runs."""
    older = [other for other in paths(path.parent) if other < path]
    for old in (*older[KEPT - 1 :], *path.parent.glob(".checkpoint-*.partial")):
        with suppress(OSError):  # a file that cannot be removed does no harm
            old.unlink()


def _write_small_things(file, solver, history):
    state = solver.state
    for name, value in {
        "time": state.time,
        "step": state.step,
        "version": VERSION,
        "config": json.dumps(solver.config.as_dict()),
    }.items():
        file.attrs[name] = value
    for name, values in history.items():
        file[f"history/{name}"] = np.array(values)


def _blocks(comm, state):
    """Yield every rank's place and part of f in turn, on rank 0; yield nothing on the others, which send."""
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


def _seal(path):
    """Write the digest of the rest into the user block."""
    with open(path, "r+b") as file:
        digest = _digest(file)
        file.seek(0)
        file.write(digest)


def _digest(file):
    """Return the SHA-256 of all that follows the user block."""
    file.seek(USER_BLOCK)
    return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _flush_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- reading -------------------------------------------------------------------------------------


def read(folder, solver):
    """Restore the newest checkpoint that is whole and valid (collective).

    Returns
    -------
    (history, remarks)
        The history that was written, on rank 0 (empty on the others), and, on all ranks, what was wrong with newer
        checkpoints.

    Raises
    ------
    FileError
        On all ranks, if there is no such checkpoint.
    ConfigError
        On all ranks, if it belongs to another run.
    """
    comm, state = solver.comm, solver.state
    file, found, remarks = None, (None, None, None, {}), []
    with ExitStack() as stack:
        with together(comm, f"expected a checkpoint in {folder}"):
            if comm.rank == 0:
                file, found = _newest(folder, solver, remarks)
                stack.enter_context(file)
        *small, history = found
        difference, time, step, remarks = comm.bcast((*small, remarks))
        if difference is not None:
            raise ConfigError(difference)
        with together(comm, f"expected to read a checkpoint in {folder}"):
            if comm.rank == 0:
                _spread(file, comm, state)
            else:
                comm.gather(state.where)
                comm.Recv(state.f, 0)
    state.time, state.step = time, step
    return history, remarks


def _newest(folder, solver, remarks):
    """Find the newest undamaged checkpoint; return its file, and (difference, time, step, history).

    Parameters
    ----------
    folder, solver : see `read`
    remarks : list of str
        Problems of newer checkpoints are appended to it.
    """
    for path in paths(folder):
        try:
            with ExitStack() as stack:
                file = stack.enter_context(_opened(path))
                difference = _difference(file, solver.config)
                found = (None, None, {}) if difference else _checked(file, solver)
                stack.pop_all()  # the checkpoint is valid: keep the file open
            return file, (difference, *found)
        except Exception as error:  # a library may raise anything for a damaged file
            remarks.append(f"{path.name}: {describe(error)}")
    raise FileError("; ".join(remarks) or "found none")


def _spread(file, comm, state):
    """Read every rank's part of f and send it to this rank (on rank 0); all parts are sent, even if reading fails."""
    failure = None
    for rank, where in enumerate(comm.gather(state.where)):
        block = np.zeros([part.stop - part.start for part in where], complex) if rank else state.f
        try:
            block[...] = file["f"][where]
        except Exception as error:
            failure = failure or error
        if rank:
            comm.Send(block, rank)
    if failure is not None:
        raise failure


def _opened(path):
    """Open the HDF5 file of a checkpoint, after a check of its digest."""
    # Without O_NONBLOCK, opening a FIFO would wait for a writer.
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        _expect(stat.S_ISREG(os.fstat(file.fileno()).st_mode), "a file", "something else")
        expected = file.read(64)
        if len(expected) < 64 or expected != _digest(file):
            raise FileError("cut off or spoilt: its digest does not match")
    return h5py.File(path)


def _difference(file, config):
    """Return the first key in which a checkpoint's configuration differs, or None; the end time may differ."""
    _expect(file.attrs["version"] == VERSION, f"version {VERSION}", file.attrs["version"])
    theirs, ours = json.loads(file.attrs["config"]), config.as_dict()
    for section in PHYSICS:
        for key, value in ours[section].items():
            other = theirs[section].get(key)
            if (section, key) != ("time", "end") and other != json.loads(json.dumps(value)):
                return f"{section}.{key}: expected {other!r} as of the checkpoint, received {value!r}"
    return None


def _checked(file, solver):
    """Return time, step and history of a checkpoint, after a check of its whole content.

    Raises
    ------
    FileError
        For the first entry that no run would have written.
    """
    state = solver.state
    time, step = file.attrs["time"], file.attrs["step"]
    _expect(isinstance(time, np.floating) and 0 <= time < np.inf, "a time of at least 0", time)
    _expect(isinstance(step, np.integer) and step >= 0, "a step of at least 0", step)
    f = _dataset(file, "f", state.global_shape, complex)
    for number in range(len(f)):  # in parts: f may be larger than the memory of this rank
        _expect(np.isfinite(f[number]).all(), "f to be finite", f"infinities or NaN at v = {number}")
    samples = len(_dataset(file, "history/time", (None,), float))
    _expect(samples <= step + 1, f"at most {step + 1} samples", samples)
    history = {}
    for name in ("time", *SERIES):
        axes, kind = SERIES[name][:2] if name in SERIES else ((), float)
        shape = (samples, *(len(state.coords[axis]) for axis in axes))
        values = _dataset(file, f"history/{name}", shape, kind)[()]
        _expect(np.isfinite(values).all(), f"history/{name} to be finite", "infinities or NaN")
        history[name] = list(values)
    return float(time), int(step), history


def _dataset(file, name, shape, kind):
    """Return a dataset after a check of its shape, in which None stands for any length, and type."""
    data = file.get(name)
    _expect(isinstance(data, h5py.Dataset), f"an array {name}", data)
    fits = len(data.shape) == len(shape) and all(want in (None, have) for want, have in zip(shape, data.shape))
    _expect(
        fits and data.dtype == kind,
        f"{name} of shape {shape} and type {np.dtype(kind)}",
        f"{data.shape} and {data.dtype}",
    )
    return data


def _expect(true, expected, received):
    if not true:
        raise FileError(f"expected {expected}, received {received}")

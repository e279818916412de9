"""The output file: HDF5 with named axes (dimension scales) as netCDF-4 has them, so xarray opens it."""

import json

import numpy as np

from .diagnostics import SERIES
from .files import together, writing

UNITS = {"time": "R/v_ti", "v": "v_ti", "mu": "T/B_ax", "z": "radian", "ky": "1/rho_ti", "kx": "1/rho_ti"}


def write(path, solver, history):
    """Write the history and phi of the state (collective).

    Parameters
    ----------
    path : path
    solver : Solver
    history : dict of list
        Samples by name; those of rank 0 are written.

    Raises
    ------
    FileError
        On all ranks.
    """
    comm, state = solver.comm, solver.state
    solver.solve_fields(state.f)
    parts = comm.gather(None if solver.decomposition.velocity.rank else (state.where[2:4], solver.fields.inner))
    with together(comm, f"expected to write {path}"):
        if comm.rank:
            return
        phi = np.zeros(state.global_shape[2:], complex)
        for where, values in filter(None, parts):
            phi[where] = values
        with writing(path) as file:
            _fill(file, solver, history, phi)


def _fill(file, solver, history, phi):
    """Write everything, with axes, units and meanings."""
    file.attrs["config"] = json.dumps(solver.config.as_dict())
    for axis, values in {"time": history.get("time", []), **solver.state.coords}.items():
        file[axis] = np.array(values, float)
        file[axis].make_scale(axis)
        file[axis].attrs["units"] = UNITS[axis]
    arrays = {
        name: (history[name], ("time", *axes), unit, meaning)
        for name, (axes, _, unit, meaning) in SERIES.items()
        if name in history
    }
    arrays["phi"] = phi, ("z", "ky", "kx"), "T/e rho/R", "potential at the end"
    for name, (values, axes, unit, meaning) in arrays.items():
        data = file.create_dataset(name, data=np.array(values))
        data.attrs["units"], data.attrs["long_name"] = unit, meaning
        for number, axis in enumerate(axes):
            data.dims[number].attach_scale(file[axis])

"""fluidsim's solver ns3d on one pipeline, beside fluidsim's own with pyfftw or our FFT class."""

import contextlib
import io
import signal
import warnings

import numpy as np
from fluiddyn.util import mpi

from overlap.compat.fluidfft.base import close_runtimes

warnings.simplefilter("ignore")  # fluidsim's
from fluidsim.solvers.ns3d.solver import Simul as FluidsimsOwn

from overlap.compat.fluidsim import Simul

STEPS = 3
CHANGES = (
    {},
    {"f": 0.5},
    {
        "forcing.enable": True,
        "forcing.type": "proportional",
        "forcing.key_forced": "vt_fft",
        "forcing.nkmin_forcing": 1,
        "forcing.nkmax_forcing": 3,
    },
    {
        "time_stepping.type_time_scheme": "RK2_phaseshift_exact",
        "oper.coef_dealiasing": 0.94,
        "oper.truncation_shape": "no_multiple_aliases",
    },
    {"oper.truncation_shape": "spherical", "oper.Lx": 5.0, "oper.Lz": 9.0},
    {"oper.coef_dealiasing": 0.0},
)


def same_flows(comm):
    """Energies, velocities and spectra are those of fluidsim's own solver, whose arrays have all modes."""
    for changes in CHANGES:
        found, expected = (_run(kind, (12, 16, 18), changes) for kind in (Simul, FluidsimsOwn))
        if (places := found.pop("places", None)) is not None:
            np.testing.assert_array_equal(places, expected["places"], str(changes))
        np.testing.assert_allclose(found.pop("energies"), expected["energies"], rtol=1e-13, err_msg=str(changes))
        for name, values in found.items():
            np.testing.assert_allclose(values, expected[name], atol=1e-14, err_msg=f"{changes}: {name}")
    close_runtimes()
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)  # which fluidsim handles


def _run(kind, points, changes):
    params = kind.create_default_params()
    for name, value in changes.items():
        owner, _, last = name.rpartition(".")
        setattr(getattr(params, owner) if owner else params, last, value)
    params.oper.nz, params.oper.ny, params.oper.nx = points
    if kind is FluidsimsOwn:
        params.oper.type_fft = "fft3d.with_pyfftw" if mpi.nb_proc == 1 else "fft3d.mpi_with_overlap"
    params.nu_2 = 0.01
    params.time_stepping.deltat0 = 0.02
    params.init_fields.type = "in_script"
    params.output.HAS_TO_SAVE = False
    with contextlib.redirect_stdout(io.StringIO()):
        sim = kind(params)
        lengths = params.oper.Lx, params.oper.Ly, params.oper.Lz
        x, y, z = (2 * np.pi * along / length for along, length in zip(sim.oper.get_XYZ_loc(), lengths))
        sim.state.init_statephys_from(
            vx=np.sin(x) * np.cos(y) * np.cos(z), vy=-np.cos(x) * np.sin(y) * np.cos(z), vz=0.3 * np.sin(x + y)
        )
        sim.state.statespect_from_statephys()
        sim.time_stepping.prepare_main_loop()
        found = [sim.output.compute_energy()]
        for _ in range(STEPS):
            sim.time_stepping.one_time_step()
            found.append(sim.output.compute_energy())
    along = sim.oper.compute_1dspectra(np.abs(sim.state.get_var("vx_fft")) ** 2)
    places = {}
    if mpi.nb_proc == 1:  # fluidsim has these for one rank alone: wavenumbers along x, y and z, and where they are
        oper = sim.oper
        wavenumbers = (1, -2, -3)
        place = oper.ik012rank_from_kadim(*wavenumbers)
        assert oper.kadim_from_ik012rank(*place[:3]) == wavenumbers
        places = {"places": [float(each[place[:3]]) for each in (oper.Kx, oper.Ky, oper.Kz)]}
    return {
        **places,
        "energies": found,
        "vx": sim.oper.gather_Xspace(sim.state.get_var("vx"), root=None),
        **dict(zip(("along x", "along y", "along z"), along)),
    }

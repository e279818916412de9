"""Pictures of finished runs. matplotlib, without a display."""

import numpy as np
from matplotlib.figure import Figure

from . import published
from .cases import saturated
from .geometry import Geometry


def draw(case, config, history, figures, phi, path):
    """Draw the picture of a case.

    Parameters
    ----------
    case : str
    history : dict of list
    figures : list of dict
        As of `cases.figures`.
    phi : ndarray of complex
        phi at z = 0 at the end, ``(ky, kx)``.
    path : path
    """
    history = {name: np.array(values) for name, values in history.items()}
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    {"cyclone": _cyclone, "zonal": _zonal, "turbulence": _turbulence}[case](
        figure, left, right, config, history, figures, phi
    )
    figure.savefig(path, dpi=110, format="png")


def _cyclone(figure, left, right, config, history, figures, phi):
    values = {one["name"]: one["measured"] for one in figures}
    ky = config.grid.ky_min * np.arange(1, config.grid.ny + 1)
    for axes, name, column in ((left, "gamma", 2), (right, "omega", 1)):
        axes.plot(published.CYCLONE[:, 0], published.CYCLONE[:, column], "o", mfc="none", label="GKV")
        axes.plot(ky, [values[f"{name} at ky = {k:.2f}"] for k in ky], "-", label="here")
        axes.set(xlabel="ky rho", ylabel=f"{name} R / v_ti")
        axes.legend()
    left.axhline(0, color="0.7", lw=0.8)


def _zonal(figure, left, right, config, history, figures, phi):
    plasma = config.plasma
    zonal = history["zonal"][:, config.grid.nx + 1].real
    left.plot(history["time"], zonal / zonal[0])
    level = published.xiao_catto(plasma.q, plasma.eps)
    left.axhline(level, color="C1", ls="--", label=f"Xiao-Catto, {level:.4f}")
    left.set(xlabel="t v_ti / R", ylabel="<phi> / <phi>(0)")
    left.legend()
    right.axis("off")
    lines = [
        f"{one['name']}: {one['measured']:.4f}" + (f" ({one['published']:.4f})" if "published" in one else "")
        for one in figures
    ]
    right.text(0, 0.5, "measured (published)\n\n" + "\n".join(lines), va="center")


def _turbulence(figure, left, right, config, history, figures, phi):
    time, flux = history["time"], history["heat_flux"].sum(1)
    left.plot(time, flux, label="heat flux Q")
    late = saturated(history)
    left.plot(time[late], np.full(late.sum(), flux[late].mean()), "k--", lw=1, label=f"mean {flux[late].mean():.1f}")
    left.plot(time, history["phi2"][:, 0], lw=0.8, label="<phi^2>, zonal")
    left.plot(time, history["phi2"][:, 1:].sum(1), lw=0.8, label="<phi^2>, others")
    left.set(xlabel="t v_ti / R", yscale="log")
    left.legend(loc="lower right")
    x, y, plane = real_space(config, phi)
    limit = abs(plane).max() or 1.0
    image = right.pcolormesh(x, y, plane, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="auto", rasterized=True)
    right.set(xlabel="x / rho", ylabel="y / rho", title="phi at z = 0", aspect="equal")
    figure.colorbar(image, ax=right)


def real_space(config, phi, points=256):
    """Compute phi on a fine grid from its modes ``(ky, kx)``; return x, y and the values ``(y, x)``."""
    grid = config.grid
    spectrum = np.zeros((points // 2 + 1, points), complex)
    spectrum[: grid.ny + 1, np.arange(-grid.nx, grid.nx + 1)] = phi
    plane = np.fft.irfft(np.fft.ifft(spectrum, axis=1), n=points, axis=0) * points**2
    x, y = (
        np.linspace(0, 2 * np.pi / step, points, endpoint=False)
        for step in (Geometry(config.plasma, grid).dkx, grid.ky_min)
    )
    return x, y, plane

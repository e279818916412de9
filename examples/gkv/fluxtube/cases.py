"""The figures of each case, beside the published ones."""

import numpy as np
from scipy.optimize import curve_fit

from . import published
from .diagnostics import growth
from .geometry import Geometry

LINEAR_WINDOW = 0.3  # the share of the time, at its end, in which growth is measured
CHANGE = 1e-2  # GKV's criterion: a mode has converged when omega and gamma change by less


def figures(case, config, history):
    """Compute the figures of a finished run.

    Returns
    -------
    list of dict
        ``name``, ``measured``; if there is a published value, also ``published`` and ``difference`` (relative); if
        agreement is demanded, ``within`` and ``ok``.
    """
    history = {name: np.array(values) for name, values in history.items()}
    return {"cyclone": _cyclone, "zonal": _zonal, "turbulence": _turbulence}[case](config, history)


def _figure(name, measured, published_value=None, within=None, **more):
    figure = {"name": name, "measured": float(measured)}
    if published_value is not None:
        difference = measured / published_value - 1
        figure |= {"published": float(published_value), "difference": float(difference)}
        if within is not None:
            figure |= {"within": within, "ok": bool(abs(difference) <= within)}
    return figure | more


def _cyclone(config, history):
    since = (1 - LINEAR_WINDOW) * history["time"][-1]
    omega, gamma, change = growth(history["time"], history["phi_middle"], since)
    balance = balance_rates(config, history)[-1]
    found = []
    low, high = published.CYCLONE_CHECKED
    for number, ky in enumerate(config.grid.ky_min * np.arange(config.grid.ny + 1)):
        if not ky:
            continue
        reference = published.cyclone(ky) or (None, None)
        asked = low - 1e-6 < ky < high + 1e-6
        converged = bool(change[number] < CHANGE)
        for name, value, theirs, within in (
            ("omega", omega[number], reference[0], published.OMEGA_WITHIN),
            ("gamma", gamma[number], reference[1], published.GAMMA_WITHIN),
        ):
            found.append(
                _figure(
                    f"{name} at ky = {ky:.2f}", value, theirs, within if asked and theirs else None, converged=converged
                )
            )
        found.append(_figure(f"gamma at ky = {ky:.2f} from the balance of entropy", balance[number]))
    return found


def balance_rates(config, history):
    """Return the growth rates ((R/LT) Q + D + losses) / (2 (S + W)), ``(samples, ky)``."""
    production = config.plasma.R_LT * history["heat_flux"] + history["D"] + history["losses"]
    with np.errstate(divide="ignore", invalid="ignore"):
        return production / (2 * (history["S"] + history["W"]))


def imbalance(config, history):
    """Return the error of the balance of entropy, relative to its largest term.

    The change of S + W between two samples is compared with the mean of its production at both.
    """
    terms = np.array([config.plasma.R_LT * history["heat_flux"].sum(1), history["D"].sum(1), history["losses"].sum(1)])
    steps = np.diff(history["time"])
    change = np.diff((history["S"] + history["W"]).sum(1)) / steps
    production = (terms[:, 1:] + terms[:, :-1]) / 2
    largest = max(abs(production).max(), abs(change).max())
    return abs(change - production.sum(0)) / largest


def _zonal(config, history):
    plasma, grid = config.plasma, config.grid
    time = history["time"]
    phi = history["zonal"][:, grid.nx + 1].real
    phi = phi / phi[0]
    recurrence = 2 * np.pi * plasma.q / Geometry(plasma, grid).dv  # recurrence time of the grid in v
    late = (time >= 0.65 * recurrence) & (time <= 0.9 * recurrence)
    found = []
    if late.any():
        residual = phi[late].mean()
        found = [
            _figure(
                "residual, Xiao-Catto", residual, published.xiao_catto(plasma.q, plasma.eps), published.RESIDUAL_WITHIN
            ),
            _figure("residual, Rosenbluth-Hinton", residual, published.rosenbluth_hinton(plasma.q, plasma.eps)),
        ]
    early = (time > 1) & (time < 15)
    if early.sum() > 20:
        frequency = published.gam_frequency(plasma.q, 1 / plasma.tau if plasma.tau else 0.0)
        fit, _ = curve_fit(_oscillation, time[early], phi[early], (0.1, 0.0, 0.5, 0.0, frequency, 0.05), maxfev=20_000)
        found += [
            _figure("GAM frequency", abs(fit[4]), frequency, published.GAM_WITHIN),
            _figure("GAM damping", -fit[5]),
        ]
    return found


def _oscillation(t, level, slope, cosine, sine, omega, damping):
    return level + slope * t + (cosine * np.cos(omega * t) + sine * np.sin(omega * t)) * np.exp(-damping * t)


def saturated(history):
    """Select the samples of the second half of the run, when turbulence has saturated."""
    return history["time"] >= history["time"][-1] / 2


def _turbulence(config, history):
    plasma = config.plasma
    flux = history["heat_flux"].sum(1)
    late = saturated(history)
    mean, spread = flux[late].mean(), flux[late].std()
    conductivity = mean / (plasma.R_LT * plasma.R_Ln) if plasma.R_LT * plasma.R_Ln else np.nan
    low, high = published.CONDUCTIVITY
    zonal = history["phi2"][late, 0].mean() / history["phi2"][late].sum(1).mean()
    return [
        _figure("mean heat flux, n T v_ti (rho/R)^2", mean, spread=float(spread)),
        _figure(
            "chi_i L_n / (rho_i^2 v_ti)",
            conductivity,
            spread=float(spread / mean * conductivity),
            published_range=[low, high],
        ),
        _figure("zonal share of <phi^2>", zonal),
        _figure("balance of entropy, median imbalance", np.median(imbalance(config, history))),
    ]

"""Published figures with which the runs are compared; units v_ti / R and 1 / rho_ti."""

import numpy as np

# Cyclone base case, adiabatic electrons: ky, omega, gamma. GKV's Benchmarks_Note, case ITGae-lin (f0.58).
# Its gamma at ky = 0.55 and 0.60 (0.311, -0.488) breaks the trend; the values here come from a run of GKV f0.65.
CYCLONE = np.array(
    [
        (0.05, -0.101, 0.030),
        (0.10, -0.219, 0.079),
        (0.15, -0.354, 0.144),
        (0.20, -0.498, 0.200),
        (0.25, -0.645, 0.236),
        (0.30, -0.790, 0.249),
        (0.35, -0.928, 0.238),
        (0.40, -1.056, 0.208),
        (0.45, -1.173, 0.162),
        (0.50, -1.278, 0.102),
        (0.55, -1.370, 0.031),
        (0.60, -1.453, -0.052),
    ]
)
CYCLONE_CHECKED = 0.15, 0.40  # range of ky in which agreement is demanded
OMEGA_WITHIN, GAMMA_WITHIN = 0.02, 0.05

RESIDUAL_WITHIN, GAM_WITHIN = 0.07, 0.04

# Ion heat conductivity chi_i L_n / (rho_i^2 v_ti) of the Cyclone base case: Watanabe, Sugama and Horton
# (2006), GKV; and the fit of Dimits et al. (2000) at R/LT = 6.92.
CONDUCTIVITY = 1.4, 2.0


def cyclone(ky):
    """Return the published (omega, gamma) at one ky, or None."""
    for known, omega, gamma in CYCLONE:
        if abs(known - ky) < 1e-6:
            return omega, gamma
    return None


def xiao_catto(q, eps):
    """Return the residual zonal flow of Xiao and Catto, Phys. Plasmas 13, 082307 (2006), circular surfaces."""
    return 1 / (1 + (1.635 + 0.5 * np.sqrt(eps) + 0.361 * eps) * q**2 / np.sqrt(eps))


def rosenbluth_hinton(q, eps):
    """Return the residual zonal flow of Rosenbluth and Hinton, Phys. Rev. Lett. 80, 724 (1998)."""
    return 1 / (1 + 1.6 * q**2 / np.sqrt(eps))


def gam_frequency(q, tau_e=1.0):
    """Return the frequency of the geodesic acoustic mode, Sugama and Watanabe, J. Plasma Phys. 72, 825 (2006)."""
    return (
        np.sqrt(2)
        * np.sqrt(7 + 4 * tau_e)
        / 2
        * np.sqrt(1 + 2 * (23 + 16 * tau_e + 4 * tau_e**2) / (q * (7 + 4 * tau_e)) ** 2)
    )

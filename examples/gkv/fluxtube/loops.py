"""Loops over all points, compiled by numba. They release the GIL, so workers run them at the same time.

Planes are (ky, kx) of one (v, mu, z), as real numbers: every coefficient but the drift's is real.
"""

import numpy as np
from numba import njit

compiled = njit(nogil=True, cache=True, error_model="numpy")


def real(array):
    """Return a C-contiguous complex array ``(..., ky, kx)`` as rows of real and imaginary parts."""
    return array.reshape(*array.shape[:-2], -1).view(float)


@compiled
def add_linear(
    out,
    sign,
    below2,
    below,
    here,
    above,
    above2,
    z_below,
    z_above,
    mu_below,
    mu_above,
    potential,
    drift,
    damping,
    z_taps,
    v_taps,
    mirror,
    mu_taps,
    energy,
    weights,
):
    """Complete the right-hand side of one v: ``out = sign * out + linear terms``.

    Parameters
    ----------
    out, below2 ... above2 : (mu, z, plane)
        The distribution at v - 2 ... v + 2 steps.
    z_below, z_above : (mu, 2, plane)
        Two planes beyond the ends in z, ascending.
    mu_below, mu_above : (2, z, plane)
    potential : (4, mu, z, plane)
        Terms of J0 phi, with `weights` (4,) at this v.
    drift, damping : (z, points)
        Real factors of i `energy` f, and of -f.
    z_taps : (5,)
    v_taps : (2, 5)
        Those of d/dv, which are multiplied with `mirror` (mu, z), and those of collisions.
    mu_taps : (mu, z, 5)
        Taps of collisions; empty without.
    energy : (mu, z)
        v^2 + mu B.
    """
    mus, zs, length = out.shape
    for m in range(mus):
        for z in range(zs):
            o, f = out[m, z], here[m, z]
            a = z_below[m, z] if z < 2 else here[m, z - 2]
            b = z_below[m, 1] if z < 1 else here[m, z - 1]
            c = z_above[m, 0] if z + 1 >= zs else here[m, z + 1]
            d = z_above[m, z + 2 - zs] if z + 2 >= zs else here[m, z + 2]
            t0, t1, t2, t3, t4 = z_taps
            t2 += v_taps[1, 2]
            for i in range(length):
                o[i] = sign * o[i] + t0 * a[i] + t1 * b[i] + t2 * f[i] + t3 * c[i] + t4 * d[i]
            slope = mirror[m, z]
            t0 = slope * v_taps[0, 0] + v_taps[1, 0]
            t1 = slope * v_taps[0, 1] + v_taps[1, 1]
            t3 = slope * v_taps[0, 3] + v_taps[1, 3]
            t4 = slope * v_taps[0, 4] + v_taps[1, 4]
            a, b, c, d = below2[m, z], below[m, z], above[m, z], above2[m, z]
            for i in range(length):
                o[i] += t0 * a[i] + t1 * b[i] + t3 * c[i] + t4 * d[i]
            if len(mu_taps):
                t0, t1, t2, t3, t4 = mu_taps[m, z]
                a = mu_below[m, z] if m < 2 else here[m - 2, z]
                b = mu_below[1, z] if m < 1 else here[m - 1, z]
                c = mu_above[0, z] if m + 1 >= mus else here[m + 1, z]
                d = mu_above[m + 2 - mus, z] if m + 2 >= mus else here[m + 2, z]
                for i in range(length):
                    o[i] += t0 * a[i] + t1 * b[i] + t2 * f[i] + t3 * c[i] + t4 * d[i]
            t0, t1, t2, t3 = weights
            a, b = potential[0, m, z], potential[1, m, z]
            c, d = potential[2, m, z], potential[3, m, z]
            for i in range(length):
                o[i] += t0 * a[i] + t1 * b[i] + t2 * c[i] + t3 * d[i]
            speed = energy[m, z]
            for i in range(length // 2):
                turn, loss = speed * drift[z, i], damping[z, i]
                re, im = f[2 * i], f[2 * i + 1]
                o[2 * i] -= turn * im + loss * re
                o[2 * i + 1] += turn * re - loss * im


@compiled
def continue_field_line(incoming, shift, own, outflow, lower, ghosts):
    """Compute two planes beyond an end of the field line.

    Parameters
    ----------
    incoming : (mu, 2, ky, kx)
        The planes at the other end, ascending in z.
    shift : (ky,)
        Steps in kx to the continuation.
    own : (mu, 2, ky, kx)
        The last two planes at this end, ascending in z.
    outflow : bool
        Where nothing continues: True extrapolates `own`, False sets 0.
    lower : bool
        The end at which z is smallest.
    ghosts : (mu, 2, ky, kx)
        The result, ascending in z.
    """
    mus, _, kys, kxs = incoming.shape
    for m in range(mus):
        for ghost in range(2):
            far = ghost == (0 if lower else 1)
            for ky in range(kys):
                step = -shift[ky] if lower else shift[ky]
                for kx in range(kxs):
                    source = kx + step
                    if 0 <= source < kxs:
                        ghosts[m, ghost, ky, kx] = incoming[m, ghost, ky, source]
                    elif outflow:
                        last = own[m, 0 if lower else 1, ky, kx]
                        if far:
                            last = 2 * last - own[m, 1 if lower else 0, ky, kx]
                        ghosts[m, ghost, ky, kx] = last
                    else:
                        ghosts[m, ghost, ky, kx] = 0.0


@compiled
def add_moment(f, v_weights, weights, first, stop, moment):
    """Add the sum of ``v_weights[v] weights[mu, z] f`` over v and mu, for z from `first` to `stop`.

    Parameters
    ----------
    f : (v, mu, z, plane)
        Real and imaginary parts.
    v_weights : (v,)
    weights : (mu, z, points)
    moment : (z, plane)
    """
    vs, mus, _, length = f.shape
    line = np.empty(length)
    for z in range(first, stop):
        total = moment[z]
        for m in range(mus):
            line[:] = 0.0
            for v in range(vs):
                weight, part = v_weights[v], f[v, m, z]
                for i in range(length):
                    line[i] += weight * part[i]
            factor = weights[m, z]
            for i in range(length // 2):
                total[2 * i] += factor[i] * line[2 * i]
                total[2 * i + 1] += factor[i] * line[2 * i + 1]


@compiled
def gill(f, slope, carry, dt, a, b, c):
    """Make one stage of the Runge-Kutta-Gill scheme, in place.

    r = a (dt slope - b carry);  f += r;  carry += 3 r - c dt slope
    """
    for i in range(len(f)):
        k = dt * slope[i]
        r = a * (k - b * carry[i])
        f[i] += r
        carry[i] += 3 * r - c * k


@compiled
def entropy_product(a, b, v_weights, weights, sums):
    """Add ``v_weights[v] weights[mu, z] Re(conj(a) b)``, summed over all but ky, to `sums`.

    Parameters
    ----------
    a, b : (v, mu, z, plane)
        Real and imaginary parts.
    v_weights : (v,)
    weights : (mu, z)
    sums : (ky,)
    """
    vs, mus, zs, length = a.shape
    kys = len(sums)
    row = length // max(1, kys)
    for v in range(vs):
        for m in range(mus):
            for z in range(zs):
                p, q = a[v, m, z], b[v, m, z]
                weight = v_weights[v] * weights[m, z]
                for ky in range(kys):
                    total = 0.0
                    for i in range(ky * row, (ky + 1) * row):
                        total += p[i] * q[i]
                    sums[ky] += weight * total

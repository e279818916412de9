"""MG's compiled loops, over planes that need not be neighbours in memory.

Planes of a level are numbered in the local array; `below` and `above` hold the places of each own plane's neighbours,
which may be own or ghost planes. Along y and x a level is whole and periodic. Sums over the neighbours of a row in y
and z are shared by the neighbours along x.
"""

from __future__ import annotations

import numpy as np

from overlap.compiled import njit


@njit(fastmath={"contract"}, inline="always")
def _sums(u, low, here, high, y, faces, edges):
    """Sum the four rows beside row y, and the four at its edges; with a place more at either end."""
    n = u.shape[2]
    ny = u.shape[1]
    south, north = u[here, y - 1 if y else ny - 1], u[here, y + 1 if y + 1 < ny else 0]
    down, up = u[low, y], u[high, y]
    a, b = u[low, y - 1 if y else ny - 1], u[low, y + 1 if y + 1 < ny else 0]
    c, d = u[high, y - 1 if y else ny - 1], u[high, y + 1 if y + 1 < ny else 0]
    inner_faces, inner_edges = faces[1 : n + 1], edges[1 : n + 1]
    for x in range(n):
        inner_faces[x] = south[x] + north[x] + down[x] + up[x]
        inner_edges[x] = a[x] + b[x] + c[x] + d[x]
    faces[0], faces[n + 1] = faces[n], faces[1]
    edges[0], edges[n + 1] = edges[n], edges[1]


@njit(fastmath={"contract"})
def residual(u, v, r, below, above, first, last):
    """Compute r = v - A u of the planes from `first` to `last` - 1; A has -8/3, 0, 1/6, 1/12."""
    n = u.shape[2]
    faces, edges = np.empty(n + 2), np.empty(n + 2)
    for z in range(first, last):
        for y in range(u.shape[1]):
            _sums(u, below[z], z, above[z], y, faces, edges)
            here, right, out = u[z, y], v[z, y], r[z, y]
            faces_low, faces_high = faces[:n], faces[2 : n + 2]
            edges_low, edges_here, edges_high = edges[:n], edges[1 : n + 1], edges[2 : n + 2]
            for x in range(n):
                out[x] = (
                    right[x]
                    + 8.0 / 3.0 * here[x]
                    - 1.0 / 6.0 * (edges_here[x] + faces_low[x] + faces_high[x])
                    - 1.0 / 12.0 * (edges_low[x] + edges_high[x])
                )


@njit(fastmath={"contract"})
def smooth(r, u, below, above, first, last, centre, face, edge, fresh):
    """Add S r to u, or set u to it if u is `fresh`."""
    n = u.shape[2]
    faces, edges = np.empty(n + 2), np.empty(n + 2)
    for z in range(first, last):
        for y in range(u.shape[1]):
            _sums(r, below[z], z, above[z], y, faces, edges)
            here, out = r[z, y], u[z, y]
            if fresh:
                out[:] = 0.0
            last_x = n - 1
            for x in (0, last_x):
                beside = here[x - 1 if x else last_x] + here[x + 1 if x < last_x else 0]
                out[x] += (
                    centre * here[x] + face * (faces[x + 1] + beside) + edge * (edges[x + 1] + faces[x] + faces[x + 2])
                )
            inner, before, middle, after = out[1:last_x], here[: n - 2], here[1:last_x], here[2:]
            faces_low, faces_here, faces_high, edges_here = faces[1:last_x], faces[2:n], faces[3 : n + 1], edges[2:n]
            for x in range(n - 2):
                inner[x] += (
                    centre * middle[x]
                    + face * (faces_here[x] + (before[x] + after[x]))
                    + edge * (edges_here[x] + faces_low[x] + faces_high[x])
                )


@njit(fastmath={"contract"})
def restrict(fine, coarse, middle, below, above, count):
    """Compute P r of the first coarse planes; `middle` has the fine planes in their middle."""
    n = fine.shape[2]
    faces, edges = np.empty(n + 2), np.empty(n + 2)
    for c in range(count):
        z = middle[c]
        for cy in range(coarse.shape[1]):
            y = 2 * cy + 1
            _sums(fine, below[z], z, above[z], y, faces, edges)
            here, out = fine[z, y], coarse[c, cy]
            for cx in range(coarse.shape[2]):
                x = 2 * cx + 1
                right = x + 1 if x + 1 < n else 0
                out[cx] = (
                    0.5 * here[x]
                    + 0.25 * (here[x - 1] + here[right] + faces[x + 1])
                    + 0.125 * (edges[x + 1] + faces[x] + faces[x + 2])
                    + 0.0625 * (edges[x] + edges[x + 2])
                )


@njit(fastmath={"contract"})
def prolong(coarse, fine, low, high, first, last, fresh):
    """Add Q u to the fine planes `first` to `last` - 1, or set them to it. Each lies between two coarse planes, or in
    one, which then is both.
    """
    ny, n = coarse.shape[1], coarse.shape[2]
    line = np.empty(n)
    for z in range(first, last):
        for y in range(fine.shape[1]):
            one, other = (y - 1) // 2 if y else ny - 1, y // 2
            a, b, c, d = coarse[low[z], one], coarse[low[z], other], coarse[high[z], one], coarse[high[z], other]
            for x in range(n):
                line[x] = 0.25 * (a[x] + b[x] + c[x] + d[x])
            out = fine[z, y]
            if fresh:
                out[:] = 0.0
            before = line[n - 1]
            for x in range(n):
                out[2 * x] += 0.5 * (before + line[x])
                out[2 * x + 1] += line[x]
                before = line[x]


@njit(fastmath={"reassoc", "contract"})
def squares(r, count):
    """Return the sum of squares of the first planes."""
    total = 0.0
    for z in range(count):
        plane = r[z]
        for y in range(plane.shape[0]):
            row = plane[y]
            for x in range(len(row)):
                total += row[x] * row[x]
    return total

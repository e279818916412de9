"""The stiffness matrix of an elastic cube: trilinear hexahedra, blocks of 3 x 3, assembled node by node.

Young's modulus 1, unit elements; the faces x = 0, y = 0 and z = 0 slide, the face z = n is pulled by a uniform traction
of 1. The displacement is linear then, ``(-nu x, -nu y, z)``, and these elements reproduce it.
"""

from __future__ import annotations

from itertools import product

import numpy as np

POISSON = 0.3
CORNERS = list(product((0, 1), repeat=3))  # corners of an element, along (z, y, x), in the order of node numbers


def element(poisson: float = POISSON) -> np.ndarray:
    """Compute the stiffness of a unit element, (8 corners, 8 corners, 3, 3), by 2 x 2 x 2 Gauss points.

    Corners as in `CORNERS`; displacements are (x, y, z).
    """
    shear = 1 / (2 * (1 + poisson))
    first = poisson / ((1 + poisson) * (1 - 2 * poisson))
    elastic = np.diag([2 * shear] * 3 + [shear] * 3)
    elastic[:3, :3] += first
    found = np.zeros((24, 24))
    for point in product((0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5), repeat=3):
        strain = np.zeros((6, 24))
        for number, corner in enumerate(CORNERS):
            factors = [at if side else 1 - at for at, side in zip(point, corner)]
            slopes = [1 if side else -1 for side in corner]
            z, y, x = (
                slopes[axis] * np.prod([factors[other] for other in range(3) if other != axis]) for axis in range(3)
            )
            strain[:, 3 * number : 3 * number + 3] = [[x, 0, 0], [0, y, 0], [0, 0, z], [y, x, 0], [0, z, y], [z, 0, x]]
        found += strain.T @ elastic @ strain / 8
    found = (found + found.T) / 2  # symmetric bit for bit, so that only half of the matrix is stored
    return found.reshape(8, 3, 8, 3).transpose(0, 2, 1, 3)


def system(n: int, planes: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Make the rows for some planes of nodes of a cube of n^3 elements.

    Parameters
    ----------
    n : int
        Elements along an edge; n + 1 nodes.
    planes : slice
        The planes of nodes along z.

    Returns
    -------
    rows, columns : ndarray
        Numbers of nodes in C order of (z, y, x).
    values : ndarray, (entries, 3, 3)
    b : ndarray, (nodes of the planes, 3)
        Forces.
    """
    stiffness = element()
    shape = (planes.stop - planes.start, n + 1, n + 1)
    grid = np.meshgrid(np.arange(planes.start, planes.stop), np.arange(n + 1), np.arange(n + 1), indexing="ij")
    fixed = fixed_at(*grid)
    rows, columns, values = [], [], []
    for offset in product((-1, 0, 1), repeat=3):
        blocks = np.zeros((*shape, 3, 3))
        for a, b in product(range(8), repeat=2):
            if tuple(np.subtract(CORNERS[b], CORNERS[a])) == offset:
                # The nodes that are corner number a of an element.
                inside = np.logical_and.reduce(
                    [(axis - side >= 0) & (axis - side < n) for axis, side in zip(grid, CORNERS[a])]
                )
                blocks[inside] += stiffness[a, b]
        there = [axis + step for axis, step in zip(grid, offset)]
        blocks *= ~fixed[..., :, None] & ~fixed_at(*there)[..., None, :]
        if offset == (0, 0, 0):
            for component in range(3):
                blocks[..., component, component] += fixed[..., component]
        inside = np.logical_and.reduce([(axis >= 0) & (axis <= n) for axis in there])
        rows.append(np.ravel_multi_index([axis[inside] for axis in grid], (n + 1,) * 3))
        columns.append(np.ravel_multi_index([axis[inside] for axis in there], (n + 1,) * 3))
        values.append(blocks[inside])
    force = np.zeros((*shape, 3))
    inner = [1 - 0.5 * ((axis == 0) | (axis == n)) for axis in grid[1:]]
    force[..., 2] = (grid[0] == n) * inner[0] * inner[1]
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values), force.reshape(-1, 3)


def fixed_at(z: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return which components (x, y, z) of the displacement of nodes are held at zero."""
    return np.stack([x == 0, y == 0, z == 0], axis=-1)


def exact(n: int, planes: slice) -> np.ndarray:
    """Return the exact displacement of the nodes of some planes, (nodes, 3)."""
    z, y, x = np.meshgrid(np.arange(planes.start, planes.stop), np.arange(n + 1), np.arange(n + 1), indexing="ij")
    return np.stack([-POISSON * x, -POISSON * y, 1.0 * z], axis=-1).reshape(-1, 3)

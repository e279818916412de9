"""Compiled kernels as the Python that they are written in, against NumPy and SciPy.

Their compiled code is tested through the solvers on ranks, the collectives' protocol as Python by `model_checking`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import bsr_array, csr_array, random_array

from overlap.sparse import incomplete, kernels, multigrid, preconditioners
from overlap.sparse.rows import Rows

ROWS = 13
RNG = np.random.default_rng(3)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def python_of(module: Any) -> SimpleNamespace:
    """Return a module's compiled functions, uncompiled."""
    return SimpleNamespace(**{name: one.py_func for name, one in vars(module).items() if hasattr(one, "py_func")})


KERNELS, INCOMPLETE, POLYNOMIAL, TRANSFER = map(python_of, (kernels, incomplete, preconditioners, multigrid))


def vectors(count: int, dtype: str = "f8", shape: tuple[int, ...] = (ROWS,)) -> Any:
    """Draw so many vectors."""
    return [
        (RNG.standard_normal(shape) + (1j * RNG.standard_normal(shape) if dtype == "c16" else 0)) for _ in range(count)
    ]


@pytest.fixture
def matrix() -> csr_array:
    found = random_array((ROWS, ROWS), density=0.3, format="csr", rng=5) + csr_array(np.eye(ROWS))
    found = csr_array(found + found.T)
    found.sort_indices()
    return found


def test_products_with_a_transposed_matrix(matrix):
    x, y = vectors(2)
    start = y.copy()
    KERNELS.csr_transposed(matrix.indptr, matrix.indices, matrix.data, x, y, ROWS)
    close(y, start + matrix.T @ x)


@pytest.mark.parametrize("size", [2, 3])
def test_products_of_blocks(matrix, size):
    values = RNG.standard_normal((matrix.nnz, size, size))
    whole = bsr_array((values, matrix.indices, matrix.indptr), shape=(size * ROWS, size * ROWS))
    x, y = vectors(2, shape=(ROWS, size))
    KERNELS.blocks(matrix.indptr, matrix.indices, values, x, y, 0, ROWS)
    close(y.ravel(), whole @ x.ravel())
    start = y.copy()
    KERNELS.blocks_transposed(matrix.indptr, matrix.indices, values, x, y, ROWS)
    close(y.ravel(), start.ravel() + whole.T @ x.ravel())
    KERNELS.scale_blocks(values[:ROWS], x, y)
    close(y, np.einsum("rij,rj->ri", values[:ROWS], x))
    if size == 3:
        close(KERNELS.product_of_3(values, 4, *x[0]), values[4] @ x[0])


def test_products_by_diagonals():
    offsets = np.array([0, 1, 4])
    values, x, y = RNG.standard_normal((3, ROWS + 8)), *vectors(2, shape=(ROWS + 8,))
    low, inside = 4, slice(4, 4 + ROWS)
    KERNELS.diagonals(offsets, values, x, y, low, 0, ROWS)
    close(y[:ROWS], sum(values[d, :ROWS] * x[low + offset :][:ROWS] for d, offset in enumerate(offsets)))
    KERNELS.symmetric_diagonals(offsets, values, x, y, low, 0, ROWS)
    expected = values[0, inside] * x[inside]
    for number, offset in enumerate(offsets[1:], 1):
        expected += values[number, inside] * x[low + offset :][:ROWS]
        expected += values[number, low - offset :][:ROWS] * x[low - offset :][:ROWS]
    close(y[:ROWS], expected)


def test_parts_of_a_matrix(matrix):
    rows = Rows(0, ROWS, matrix.indptr, matrix.indices, matrix.data)
    close(rows.diagonal(), matrix.diagonal())
    close(rows.sums(), abs(matrix).sum(1))
    own = matrix[3:9]
    order = np.array([5, 0, 3, 1, 2, 4])
    starts, columns, values = Rows(3, 6, own.indptr, own.indices, own.data).own_part(order)
    part = csr_array((values, columns, starts), shape=(6, 6))
    close(part.toarray(), matrix[3:9, 3:9].toarray()[np.ix_(order, order)])


@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_steps_of_conjugate_gradients(dtype):
    alpha, beta = 0.7, -0.3
    a, b, c, d, x, p, s, r = vectors(8, dtype)
    close(KERNELS.dot(a, b), (a * b).sum())
    expected = r - alpha * a
    KERNELS.step(alpha, a, r)
    close(r, expected)
    expected = x + alpha * p, b + beta * p
    KERNELS.turn(alpha, beta, b, x, p)
    close((x, p), expected)
    expected = x + alpha * p, d * r + beta * p
    KERNELS.scaled_turn(alpha, beta, d, r, x, p)
    close((x, p), expected)
    p_new, s_new = b + beta * p, c + beta * s
    expected = p_new, s_new, x + alpha * p_new, r - alpha * s_new
    KERNELS.single_step(alpha, beta, b, c, p, s, x, r)
    close((p, s, x, r), expected)
    n, m, z, q, u, w = vectors(6, dtype)
    sums = np.zeros(3)
    z_new, q_new, s_new, p_new = n + beta * z, m + beta * q, w + beta * s, u + beta * p
    expected = x + alpha * p_new, r - alpha * s_new, u - alpha * q_new, w - alpha * z_new
    KERNELS.pipelined_step(alpha, beta, n, m, (z, q, s, p), (x, r, u, w), sums)
    close((z, q, s, p), (z_new, q_new, s_new, p_new))
    close((x, r, u, w), expected)
    close(sums, [np.vdot(u, r).real, np.vdot(u, w).real, np.vdot(r, r).real])


def test_sums_of_real_vectors():
    q, d, r = vectors(3)
    sums = np.zeros(2)
    expected = r - 0.4 * q
    KERNELS.scaled_step(0.4, q, d, r, sums)
    close(r, expected)
    close(sums, [r @ r, r @ (d * r)])


def test_colours(matrix):
    colour = INCOMPLETE._greedy(matrix.indptr, matrix.indices)
    assert INCOMPLETE._proper(matrix.indptr, matrix.indices, colour)
    colour[:] = 0
    assert not INCOMPLETE._proper(matrix.indptr, matrix.indices, colour)
    chain = csr_array(np.eye(ROWS) + np.eye(ROWS, k=1) + np.eye(ROWS, k=-1))
    level = INCOMPLETE._levels(chain.indptr, chain.indices)
    assert sorted(level) == list(range(ROWS)) and (abs(np.diff(level)) == 1).all()


def test_steps_of_a_polynomial():
    inverse, r, product, step, x, out = vectors(6)
    POLYNOMIAL._first(2.0, inverse, r, step, x)
    close((step, x), [2.0 * inverse * r] * 2)
    expected = 0.3 * step + 0.6 * inverse * (r - product)
    POLYNOMIAL._next(0.3, 0.6, inverse, r, product, step, x, out)
    close((step, out), (expected, x + expected))


def test_transfers_between_grids():
    cells = (2, 4, 2)
    parents = TRANSFER._parents(cells)
    z, y, x = np.indices(cells)
    assert (parents == (((z // 2) * 2 + y // 2) * 1 + x // 2).ravel()).all()
    r, product = vectors(2, shape=(16,))
    coarse = np.empty(2)
    TRANSFER._restrict(parents, r, product, coarse)
    close(coarse, [(r - product)[parents == one].sum() for one in range(2)])
    fine = r.copy()
    TRANSFER._prolong(parents, coarse, fine)
    close(fine, r + coarse[parents])
    place = np.array([3, 0, 1])
    packed = np.empty(3)
    TRANSFER._collect(place, r, packed)
    close(packed, r[place])
    target = np.zeros(4)
    TRANSFER._spread(place, packed, target)
    close(target, [packed[1], packed[2], 0, packed[0]])

"""Matrices and graphs that hypothesis draws, against scipy: every storage, transport, number of workers, hidden
or not.
"""

from functools import partial

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from overlap import Halo
from overlap.sparse import IC0, AdditiveSchwarz, BlockJacobi, Jacobi, Matrix, bicgstab, cg, pipecg
from overlap.tools.bench.products import NotHidden

SOLVERS = {"cg": cg, "single": partial(cg, single_reduction=True), "pipecg": pipecg, "bicgstab": bicgstab}
PRECONDITIONERS = {"jacobi": Jacobi, "blocks": BlockJacobi, "ic0": IC0, "schwarz": AdditiveSchwarz}


def parts(comm, counts):
    """How many rows each rank has, of numbers drawn for eight; one rank has some."""
    counts = counts[: comm.size]
    counts[0] += not any(counts)
    limits = np.concatenate([[0], np.cumsum(counts)])
    return int(limits[-1]), slice(*limits[comm.rank : comm.rank + 2].tolist())


def triplets(case, rows):
    """Entries of a drawn matrix, in any order; of one that is not symmetric some several times."""
    chance = np.random.default_rng(case["seed"])
    block = case["block"]
    if case["offsets"] is None:
        i, j = (np.array(case["edges"], int).reshape(-1, 2) % rows).T
    else:
        pairs = [(row, row + offset) for offset in case["offsets"] for row in range(rows) if 0 <= row + offset < rows]
        i, j = np.array(pairs, int).reshape(-1, 2).T
    v = chance.standard_normal((len(i), block, block)).astype(case["dtype"])
    if v.dtype.kind == "c":
        v += 1j * chance.standard_normal(v.shape)
    if case["symmetric"]:
        dense = np.zeros((rows, rows, block, block), v.dtype)
        np.add.at(dense, (i, j), v)
        dense += dense.conj().transpose(1, 0, 3, 2)
        sums = abs(dense).sum(axis=(1, 3))  # so that it is positive definite
        dense[np.arange(rows), np.arange(rows)] += (1 + sums.max(axis=1))[:, None, None] * np.eye(block, dtype=v.dtype)
        i, j = np.nonzero(abs(dense).sum(axis=(2, 3)))
        v = dense[i, j]
    order = chance.permutation(len(i))
    return i[order], j[order], v[order] if block > 1 else v[order, 0, 0]


def matrix(comm, case):
    """Products, transposed ones, norms and solutions of a drawn matrix on drawn parts of ranks."""
    rows, here = parts(comm, case["counts"])
    i, j, v = triplets(case, rows)
    block, count = case["block"], here.stop - here.start
    size = rows * block
    numbers = [
        (np.repeat(one * block, block * block) + np.tile(within, len(one)))
        for one, within in zip((i, j), np.indices((block, block)).reshape(2, -1))
    ]
    right = sparse.coo_array((v.reshape(-1), numbers), shape=(size, size)).tocsr()
    mine = np.random.default_rng(case["seed"]).integers(0, comm.size, len(i)) == comm.rank
    chance = np.random.default_rng(case["seed"] + 1)
    x = chance.standard_normal(size).astype(case["dtype"])
    part = x.reshape(rows, block)[here] if block > 1 else x[here]
    fine = np.finfo(case["dtype"]).eps
    close = {"rtol": 100 * fine, "atol": 1000 * fine * (1 + abs(right).sum(axis=1).max())}

    def own(vector):
        return vector.reshape(rows, block)[here].reshape(part.shape)

    found, histories = [], []
    for transport, hidden in (("auto", False), ("auto", True), ("messages", True)):
        with Matrix(comm, i[mine], j[mine], v[mine], count, transport=transport) as A:
            if hidden:  # as exchanges are behind larger matrices' rows
                A._storage.is_short = False
            assert A.shape == right.shape and A.rows == here
            M = PRECONDITIONERS[case["preconditioner"]](A) if case["symmetric"] else None
            for A.workers in {1, case["workers"]}:
                found += [A @ part, NotHidden(A) @ part]
                if case["symmetric"]:
                    solution = SOLVERS[case["solver"]](A, part, rtol=1e4 * fine, M=M)
                    assert solution.info == 0 and solution.true_residual <= 1e5 * fine * np.linalg.norm(x)
                    histories.append((solution.residuals.tobytes(), solution.x.tobytes()))
            np.testing.assert_allclose(A.T @ part, own(right.T @ x), **close)
            np.testing.assert_allclose(A.to_scipy().toarray(), right.toarray(), **close)
            np.testing.assert_allclose(A.norm(), linalg.norm(right), rtol=1e3 * fine)
            np.testing.assert_allclose(A.norm(np.inf), abs(right).sum(axis=1).max(), rtol=1e3 * fine)
            if case["symmetric"]:
                np.testing.assert_allclose(
                    solution.x, own(linalg.spsolve(right.tocsc(), x)), rtol=1e6 * fine, atol=1e6 * fine
                )
    np.testing.assert_allclose(found[0], own(right @ x), **close)
    for product in found:
        np.testing.assert_array_equal(product, found[0])
    assert len(set(histories)) <= 1, "expected the same bits in every mode"


def graph(comm, case):
    """A halo of drawn needs of drawn owners: each rank gets what it needs, over both transports."""
    owners = np.array(case["owners"], int) % comm.size
    owned = np.flatnonzero(owners == comm.rank)[:: -1 if case["reversed"] else 1]
    needed = np.array(case["needs"][comm.rank], int)
    needed = needed[needed < len(owners)]
    kind = ("f8", tuple(case["components"])) if case["components"] else "f8"
    for transport in ("auto", "messages"):
        with Halo.from_indices(comm, owned, needed, [kind, "i4"], transport=transport) as halo:
            x, numbers = halo.empty()
            for turn in range(3):
                x[: len(owned)] = (owned + 0.5 + turn).reshape(-1, *(1 for _ in case["components"]))
                numbers[: len(owned)] = owned - turn
                halo.exchange(x, numbers)
                everything = np.concatenate([owned, needed])
                np.testing.assert_array_equal(numbers, everything - turn)
                np.testing.assert_array_equal(
                    x, np.broadcast_to((everything + 0.5 + turn).reshape(-1, *(1 for _ in case["components"])), x.shape)
                )

"""Recipes of halos, sparse matrices, solvers and preconditioners."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from generated import Call, Lab, Subject, each
from generated_runtime import in_program, runtime

import overlap
from overlap import InputError, sparse

NO_COMM = {"comm": "there is no communicator over which a rank could tell the others"}
NO_MATRIX = {"A": "it brings the communicator over which a rank could tell the others"}
FREEING = each("close free", "to close twice is allowed")
OF_SOLVERS = "for solvers and preconditioners, which know whether the matrix is open"
TRUSTED = "what solvers call in every step, with arrays that they have made themselves"
DATA = "data that were there when it was made"


# ---- halos ---------------------------------------------------------------------------------------


def blocks(lab: Lab) -> overlap.Blocks:
    return overlap.Blocks((3 * lab.size, 2), (lab.size, 1))


def needs(lab: Lab) -> np.ndarray:
    """Numbers of entries that a rank needs of others, where the last rank holds none: the first one of each."""
    return np.array([3 * rank for rank in range(lab.holders) if rank != lab.rank])


def halo(lab: Lab, comm: Any = None) -> Any:
    comm = comm or lab.comm
    if lab.holders == lab.size:
        return overlap.Halo(comm, blocks(lab))
    return overlap.Halo.from_indices(comm, 3 * lab.rank + np.arange(lab.count(3)), needs(lab))


def awaited_halo(lab: Lab) -> Any:
    lab.runtime = runtime(lab)
    return halo(lab, lab.runtime.comm)


def close_awaited(lab: Lab, one: Any) -> None:
    one.free()
    lab.runtime.close()


def numbered(lab: Lab, one: Any) -> dict[str, Any]:
    array = np.zeros(one.local_shape)
    array[blocks(lab).own(lab.rank) if lab.holders == lab.size else slice(lab.count(3))] = 1.0 + lab.rank
    return {"arrays": (array,)}


def ghosts(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    (array,) = arguments["arrays"]
    if lab.holders < lab.size:
        assert (array[lab.count(3) :] == 1.0 + needs(lab) // 3).all(), array
        return
    around = blocks(lab)
    for one in around.neighbours(lab.rank):
        assert (array[one.receive] == 1.0 + one.rank).all(), array


def after(lab: Lab, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Make as many rounds as it takes until all ranks know of an error: it travels one neighbour further in each."""
    result = function(*args, **kwargs)
    for _ in range(max(1, lab.size - 2)):
        lab.one.exchange(np.zeros(lab.one.local_shape))
    return result


def started(lab: Lab, function: Any, *arrays: Any) -> None:
    after(lab, lambda: function(*arrays).wait())


def begun(lab: Lab, function: Any, *arrays: Any) -> None:
    async def whole() -> None:
        await (await function(*arrays))

    in_program(lab, whole)


OF_HALOS = {"fail": TRUSTED} | each("abandon lose", OF_SOLVERS)
HALO_CALLS = {
    "empty": Call(),
    "check_open": Call(local=True),
    "exchange": Call(numbered, ghosts, run=after),
    "start": Call(numbered, ghosts, run=started),
}


# ---- matrices ------------------------------------------------------------------------------------

ROWS = 4  # of a rank
OFFSETS, COEFFICIENTS = ((0,), (1,), (-1,)), (2.5, -1.0, -1.0)


def matrix(lab: Lab) -> Any:
    if lab.holders < lab.size:
        return sparse.Matrix.from_scipy(lab.comm, scipys(lab))
    return sparse.Matrix.from_stencil(lab.comm, (ROWS * lab.size,), OFFSETS, COEFFICIENTS)


def block_matrix(lab: Lab) -> Any:
    count = lab.count(2)
    rows = 2 * lab.rank + np.arange(count)
    values = np.array([np.eye(2) * 2] * 2)[:count]
    return sparse.Matrix(lab.comm, rows, rows, values, count)


def dense(lab: Lab) -> np.ndarray:
    count = ROWS * lab.holders
    return 2.5 * np.eye(count) - np.eye(count, k=1) - np.eye(count, k=-1)


def vector(lab: Lab) -> np.ndarray:
    return np.arange(1.0, lab.count(ROWS) + 1) + ROWS * lab.rank


def own(lab: Lab, whole: np.ndarray) -> np.ndarray:
    return whole[ROWS * lab.rank : ROWS * (lab.rank + 1)]


def product(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert np.allclose(result, own(lab, dense(lab) @ np.arange(1.0, ROWS * lab.holders + 1)))


def solved(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    truth = np.linalg.solve(dense(lab), np.arange(1.0, ROWS * lab.holders + 1))
    assert result.info == 0 and np.allclose(result.x, own(lab, truth), rtol=1e-4)


def right_norm(lab: Lab, one: Any, arguments: dict[str, Any], result: Any) -> None:
    assert np.isclose(result, np.linalg.norm(dense(lab)))


def one_vector(lab: Lab, one: Any) -> dict[str, Any]:
    return {"x": vector(lab)}


def entries(lab: Lab, one: Any) -> dict[str, Any]:
    rows = np.arange(ROWS * lab.rank, ROWS * (lab.rank + 1))
    return {"rows": rows, "columns": rows, "values": np.full(ROWS, 2.0), "count": ROWS}


def scipys(lab: Lab) -> Any:
    from scipy.sparse import csr_array

    return csr_array(own(lab, dense(lab)))


SOLVERS = ("cg", "pipecg", "bicgstab", "gmres", "minres")


def solver_call(name: str) -> Call:
    return Call(
        lambda lab, one: {
            "A": one,
            "b": vector(lab),
            "x0": np.zeros(lab.count(ROWS)),
            "rtol": 1e-6,
            "atol": 1e-9,
            "maxiter": 200,
            "M": sparse.Jacobi(one),
            "callback": lambda x: None,
        },
        solved,
        untold=NO_MATRIX,
        legal={
            "x0=None": "zero",
            "b=negative": "",
            "rtol=infinite": "as of scipy's",
            "atol=infinite": "as of scipy's",
            "atol=None": "as of scipy's",
            "comm": "not needed for a Matrix",
            "single_reduction": "any truth value",
        },
    )


class Operator:
    """A product that scipy would take, of no `Matrix`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __matmul__(self, x: np.ndarray) -> np.ndarray:
        return own(self._lab, dense(self._lab) @ np.concatenate(self._lab.comm.allgather(x)))


def operator_call() -> Call:
    return Call(
        lambda lab, one: {
            "A": Operator(lab),
            "b": vector(lab),
            "x0": np.zeros(lab.count(ROWS)),
            "comm": lab.comm,
            "maxiter": 200,
        },
        solved,
        untold=NO_COMM,
        legal={
            "rtol=infinite": "as of scipy's",
            "atol=infinite": "as of scipy's",
            "single_reduction": "any truth value",
        },
    )


def cells(lab: Lab) -> overlap.Blocks:
    return overlap.Blocks((4 * lab.holders, 4, 4), (lab.size, 1, 1))


PRECONDITIONERS: dict[str, tuple[Any, Any]] = {  # matrix, other arguments
    "Jacobi": (matrix, lambda lab: {}),
    "BlockJacobi": (block_matrix, lambda lab: {}),
    "IC0": (matrix, lambda lab: {"colours": 2, "shift": 0.1}),
    "Chebyshev": (matrix, lambda lab: {"degree": 2, "ratio": 6.0}),
    "AdditiveSchwarz": (matrix, lambda lab: {"local": sparse.IC0, "corrections": 1, "overlap": 1}),
    "Multigrid": (
        lambda lab: sparse.diffusion(lab.comm, cells(lab), 1.0, fixed=[(0, 0)]),
        lambda lab: {"blocks": cells(lab), "smoother": sparse.Chebyshev, "switch": 1, "gather_to": 1},
    ),
}


REFUSES_FEW = {"Multigrid": "its blocks are of equal sizes"}


def preconditioner(lab: Lab, name: str) -> Any:
    make, options = PRECONDITIONERS[name]
    A = make(lab)
    try:
        return lab.given_by(A, getattr(sparse, name)(A, **options(lab)))
    except InputError:  # of all ranks: it refuses this matrix
        A.free()
        raise


def free_both(lab: Lab, one: Any) -> None:
    one.free()
    lab.owner_of(one).free()


def free_matrix(lab: Lab, one: Any) -> None:
    lab.owner_of(one).free()


def ones_of(lab: Lab, one: Any) -> dict[str, Any]:
    shape = lab.owners[id(one)]._vector_shape
    return {"r": np.ones(shape)}


def pair_of(lab: Lab, one: Any) -> dict[str, Any]:
    return ones_of(lab, one) | {"z": np.zeros(ones_of(lab, one)["r"].shape)}


def preconditioners() -> tuple[Subject, ...]:
    found = []
    for name, (make, options) in PRECONDITIONERS.items():
        found.append(
            Subject(
                (f"constructor of overlap.sparse.{name}",),
                make=make,
                close=lambda lab, one: one.free(),
                functions={name: getattr(sparse, name)},
                refuses_few=REFUSES_FEW.get(name, ""),
                calls={
                    name: Call(
                        lambda lab, one, options=options: {"A": one, **options(lab)},
                        untold=NO_MATRIX,
                        done=lambda one: one.free(),
                    )
                },
            )
        )
        for end, close in (("", free_both), (" of a freed matrix", free_matrix)):
            found.append(
                Subject(
                    (f"overlap.sparse.{name}{end}",),
                    make=partial(preconditioner, name=name),
                    close=close,
                    words=(name, "preconditioner", "matrix", "Matrix"),
                    use=("__matmul__",),
                    working=FREEING | {"matrix": DATA},
                    internal={"apply_to": OF_SOLVERS},
                    refuses_few=REFUSES_FEW.get(name, ""),
                    once=True,
                    calls={
                        "check_open": Call(local=True),
                        "__matmul__": Call(ones_of),
                        "apply": Call(pair_of, trusted=TRUSTED),
                    },
                )
            )
    return tuple(found)


SUBJECTS = (
    Subject(
        ("constructor of overlap.Halo", "overlap.agreed_blocks", "overlap.Blocks"),
        make=lambda lab: None,
        functions={
            "Halo": overlap.Halo,
            "from_indices": overlap.Halo.from_indices,
            "agreed_blocks": overlap.agreed_blocks,
            "Blocks": overlap.Blocks,
        },
        calls={
            "Halo": Call(
                lambda lab, one: {"comm": lab.comm, "parts": blocks(lab), "dtypes": "f8", "exchange": "f4"},
                untold=NO_COMM,
                legal={"dtypes=None": "numpy's None is float64"},
                done=lambda one: one.free(),
            ),
            "from_indices": Call(
                lambda lab, one: {
                    "comm": lab.comm,
                    "owned": np.arange(3 * lab.rank, 3 * lab.rank + 3),
                    "needed": np.arange(3, 3 * min(lab.size, 2)) if lab.rank == 0 else np.array([0]),
                    "exchange": "f4",
                },
                untold=NO_COMM,
                legal={"dtypes=None": "numpy's None is float64"},
                done=lambda one: one.free(),
            ),
            "agreed_blocks": Call(
                lambda lab, one: {"comm": lab.comm, "shape": (3 * lab.size, 2), "grid": (lab.size, 1)}, untold=NO_COMM
            ),
            "Blocks": Call(
                lambda lab, one: {
                    "shape": (3 * lab.size, 2),
                    "grid": (lab.size, 1),
                    "width": 1,
                    "weights": None,
                    "shares": None,
                },
                local=True,
                legal={"corners": "any truth value", "periodic": "any truth value"},
            ),
        },
    ),
    Subject(
        ("overlap.Blocks",),
        make=blocks,
        calls={
            "inner": Call(
                lambda lab, one: {"rank": 0, "reach": 1}, local=True, legal={"reach=huge": "no cell is inner"}
            ),
            "local_shape": Call(lambda lab, one: {"rank": 0}, local=True),
            "neighbours": Call(
                lambda lab, one: {"rank": 0}, local=True, run=lambda lab, function, rank: list(function(rank))
            ),
            "outer": Call(lambda lab, one: {"rank": 0, "reach": 1}, local=True, legal={"reach=huge": "all cells are"}),
            "own": Call(lambda lab, one: {"rank": 0}, local=True),
            "part": Call(lambda lab, one: {"rank": 0}, local=True),
        },
    ),
    Subject(
        ("overlap.Halo",),
        make=halo,
        close=lambda lab, one: one.free(),
        words=("halo", "Halo"),
        use=("exchange",),
        working=FREEING | {"from_indices": "makes another one"},
        internal=OF_HALOS | each("__call__ begin", "see the halo of a runtime"),
        once=True,
        calls=HALO_CALLS,
    ),
    Subject(
        ("overlap.Halo of a runtime",),
        make=awaited_halo,
        close=close_awaited,
        words=("halo", "Halo", "runtime"),
        use=("__call__",),
        working=FREEING | {"from_indices": "makes another one"},
        internal=OF_HALOS,
        once=True,
        calls=HALO_CALLS
        | {"begin": Call(numbered, ghosts, run=begun), "__call__": Call(numbered, ghosts, run=in_program)},
    ),
    Subject(
        ("overlap.halo.PendingHalo",),
        make=lambda lab: lab.given_by(one := halo(lab), one.start(*numbered(lab, one)["arrays"])),
        close=lambda lab, one: lab.owner_of(one).free(),
        words=("halo", "Halo"),
        use=("wait",),
        calls={"test": Call(local=True), "wait": Call()},
    ),
    Subject(
        ("constructor of overlap.sparse.Matrix", "overlap.sparse.diffusion"),
        make=lambda lab: None,
        functions={
            "Matrix": sparse.Matrix,
            "from_scipy": sparse.Matrix.from_scipy,
            "from_stencil": sparse.Matrix.from_stencil,
            "diffusion": sparse.diffusion,
        },
        calls={
            "Matrix": Call(entries, untold=NO_COMM, done=lambda one: one.free()),
            "from_scipy": Call(lambda lab, one: {"local": scipys(lab)}, untold=NO_COMM, done=lambda one: one.free()),
            "from_stencil": Call(
                lambda lab, one: {"shape": (ROWS * lab.size,), "offsets": OFFSETS, "coefficients": COEFFICIENTS},
                untold=NO_COMM,
                done=lambda one: one.free(),
            ),
            "diffusion": Call(
                lambda lab, one: {"blocks": cells(lab), "coefficient": 1.0, "fixed": ((0, 0),)},
                untold=NO_COMM,
                legal={"coefficient": "one number is allowed on any rank", "fixed=empty": ""},
                done=lambda one: one.free(),
            ),
        },
    ),
    Subject(
        ("overlap.sparse.Matrix",),
        make=matrix,
        close=lambda lab, one: one.free(),
        words=("matrix", "Matrix"),
        use=("__matmul__",),
        working=FREEING
        | each("from_scipy from_stencil", "makes another one")
        | each("needed local_rows workers", DATA)
        | {"T": "products with it are no longer possible"},
        once=True,
        calls={
            "__matmul__": Call(one_vector, product),
            "astype": Call(lambda lab, one: {"dtype": "f4"}, done=lambda one: one.free()),
            "check_open": Call(local=True),
            "matvec": Call(one_vector, product),
            "dot": Call(one_vector, product),
            "multiply_transposed": Call(one_vector, product),
            "compute": Call(lambda lab, one: storage_pair(lab, one), trusted=TRUSTED),
            "multiply": Call(lambda lab, one: storage_pair(lab, one), trusted=TRUSTED),
            "diagonal": Call(local=True),
            "inward": Call(one_vector, trusted=TRUSTED),
            "outward": Call(one_vector, trusted=TRUSTED),
            "norm": Call(lambda lab, one: {"ord": "fro"}, right_norm),
            "to_scipy": Call(),
            "sum": Call(lambda lab, one: {"values": np.ones(2)}, trusted=TRUSTED),
            "start_sum": Call(
                lambda lab, one: {"values": np.ones(2), "sums": np.zeros(2)},
                run=lambda lab, function, values, sums: function(values, sums)(),
                trusted=TRUSTED,
            ),
            "vector": Call(trusted=TRUSTED),
            "vector_problem": Call(one_vector, local=True, legal={"x": "it says what is wrong"}),
        },
    ),
    Subject(
        ("overlap.sparse.Matrix.T",),
        make=lambda lab: lab.given_by(one := matrix(lab), one.T),
        close=lambda lab, one: lab.owner_of(one).free(),
        words=("matrix", "Matrix"),
        use=("__matmul__",),
        once=True,
        calls={"__matmul__": Call(one_vector, product)},
    ),
    *preconditioners(),
    Subject(
        tuple(f"overlap.sparse.{name}" for name in (*SOLVERS, "faster_cg")),
        make=matrix,
        close=lambda lab, one: one.free(),
        functions={name: getattr(sparse, name) for name in (*SOLVERS, "faster_cg")},
        calls={name: solver_call(name) for name in SOLVERS}
        | {
            "faster_cg": Call(
                lambda lab, one: {"A": one, "b": vector(lab)},
                untold=NO_MATRIX,
                legal={"comm": "not needed for a Matrix"},
                costly=True,
            )
        },
    ),
    Subject(
        ("overlap.sparse.cg of an operator", "overlap.sparse.bicgstab of an operator"),
        make=lambda lab: None,
        functions={name: getattr(sparse, name) for name in SOLVERS},
        calls={name: operator_call() for name in SOLVERS},
    ),
    Subject(
        ("overlap.sparse.Solution",),
        make=lambda lab: sparse.Solution(np.ones(2), [1.0, 0.1], 0.5, 0.1),
        calls={},
        internal={"__new__": "made by solvers", "__getnewargs__": "of pickle's"},
    ),
)


def storage_pair(lab: Lab, one: Any) -> dict[str, Any]:
    extended, mine = one.vector()
    return {"extended": extended, "out": np.zeros_like(mine)}

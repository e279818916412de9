"""Arrays that are larger than a piece are gathered and saved; the truth is the global array."""

import numpy as np
from everywhere import raises_everywhere
from marks import exhaustive, on_ranks
from test_distarray import folder, made

import overlap
from overlap import DistArray, InputError
from overlap.arrays import pieces


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_in_pieces(comm):
    """Arrays of every number of axes, split along any, arrive whole in small pieces, and parts of them too."""
    import h5py

    before, pieces.PIECE_NBYTES = pieces.PIECE_NBYTES, 200
    try:
        with folder(comm) as place:
            for whole in (
                np.arange(1001.0),
                np.arange(37 * 29, dtype="i4").reshape(37, 29),
                np.arange(7 * 11 * 13).reshape(7, 11, 13) * 1j,
                np.arange(60).astype("M8[D]").reshape(4, 15),
                np.array([str(n) for n in range(50)], object),
            ):
                arrays = [made(comm, whole, (axis,), (comm.size,)) for axis in range(whole.ndim)]
                arrays.append(DistArray(whole, comm, whole.shape, (), [slice(0, length) for length in whole.shape]))
                for u in arrays:
                    for root in (0, comm.size - 1):
                        for first in (
                            slice(None),
                            slice(3, 1, -1),
                            slice(-2, None, -3),
                            slice(1, None, 2),
                            slice(2, 2),
                            3,
                        ):
                            index = (first,) + (slice(None, None, -1),) * (whole.ndim - 1)
                            found = u.gather(root, index)
                            assert (found is None) == (comm.rank != root)
                            assert found is None or np.array_equal(found, whole[index])
                    found = u.to_xarray()
                    assert comm.rank or np.array_equal(found, whole)
                    assert comm.rank or np.array_equal(found["axis_0"], np.arange(len(whole)))
                    if whole.dtype.kind in "ifc":
                        u.save(place / "u.h5")
                        if comm.rank == 0:
                            with h5py.File(place / "u.h5") as file:
                                assert np.array_equal(file["data"], whole)
                                assert np.array_equal(file["axis_0"], np.arange(len(whole)))
                        comm.Barrier()
                        v = u * 0
                        v.load(place / "u.h5")
                        assert np.array_equal(v, u)
    finally:
        pieces.PIECE_NBYTES = before


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_what_cannot_be_saved(comm):
    """Names that mean something in HDF5, texts and dates: one error on all ranks, which says what is wrong."""
    u = made(comm, np.arange(12.0), (0,), (comm.size,))
    with folder(comm) as place:
        path = place / "u.h5"
        for name in ("a/b", "", ".", "a\0b"):
            raises_everywhere(
                comm, InputError, f"a text without '/' and not empty, received {name!r}", u.save, path, name
            )
        for dtype in ("U3", "M8[s]", "m8[s]"):
            raises_everywhere(comm, InputError, str(np.dtype(dtype)), u.astype("i8").astype(dtype).save, path)
            coords = {"axis_0": np.arange(12).astype(dtype)}
            raises_everywhere(comm, InputError, "axis_0", lambda coords=coords: u.save(path, coords=coords))
        assert not path.exists()
        comm.Barrier()


@on_ranks(1, exhaustive(2), 3, exhaustive(4), exhaustive("openmpi-2"))
def test_empty_axes(comm):
    """An axis of length zero is written, read and saved as any other."""
    for shape in ((0, 4), (4, 0), (0,)):
        u = made(comm, np.zeros(shape), (0,), (comm.size,))
        with folder(comm) as place:
            u.save(place / "u.h5")
            u.load(place / "u.h5")
            gathered = u.gather()
            assert comm.rank or gathered.shape == shape
            with overlap.Output(comm, place / "o.h5", "w") as output:
                for step in range(2):
                    output.write({"u": u, "e": 1.5 + step}, step=step, time=0.5)
            with overlap.Output(comm, place / "o.h5") as output:
                assert output.fields["u"].shape == shape
                assert output.read({"u": u}, step=1)["e"] == 2.5

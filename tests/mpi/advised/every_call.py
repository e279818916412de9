"""A program for `overlap advise`: calls of every kind, in lines that the test finds by their comments.

It knows nothing of the command, and asserts its own results.
"""

import pickle
import sys

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import COMM_SELF, COMM_WORLD, Request

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
total = size * (size - 1) // 2


def once():
    a, b, all_of = np.full(100, float(rank)), np.empty(100), np.empty(100 * size)
    comm.Allreduce(a, b)  # allreduce
    assert (b == total).all()
    comm.Allreduce(MPI.IN_PLACE, b)  # in place
    comm.Bcast([b, MPI.DOUBLE], root=size - 1)  # bcast
    comm.Allgather(a, all_of)  # allgather
    assert (all_of == np.repeat(np.arange(size), 100)).all()
    comm.Scatter(all_of if rank == 0 else None, b, root=0)  # scatter
    assert (b == rank).all()
    counts = [10 * (other + 1) for other in range(size)]
    places = [sum(counts[:other]) for other in range(size)]
    out, back = np.full(sum(counts), rank, "i4"), np.empty(10 * (rank + 1) * size, "i4")
    mine = [10 * (rank + 1)] * size
    comm.Alltoallv([out, (counts, places), MPI.INT], [back, (mine, None), MPI.INT])  # alltoallv
    assert (back == np.repeat(np.arange(size), 10 * (rank + 1))).all()
    row = MPI.DOUBLE.Create_contiguous(50).Commit()
    x, y = np.full((size, 50), float(rank)), np.empty((size, 50))
    bytes_of = [400 * other for other in range(size)]
    types = [row] * size
    comm.Alltoallw([x, ([1] * size, bytes_of), types], [y, ([1] * size, bytes_of), types])  # alltoallw
    assert (y == np.arange(size)[:, None]).all()
    row.Free()

    comm.Sendrecv(a, right, 3, b, left, 3)  # sendrecv
    assert (b == left).all()
    status = MPI.Status()
    comm.Sendrecv(a, dest=right, recvbuf=b, source=MPI.ANY_SOURCE, status=status)  # any source
    assert status.Get_source() == left
    assert status.Get_count(MPI.DOUBLE) == 100
    receive, send = comm.Irecv(b, left, 5), comm.Isend(a, right, 5)  # isend
    assert isinstance(receive, MPI.Request)
    MPI.Request.Waitall([receive, send])  # waitall
    assert (b == left).all()
    assert not receive
    requests = [comm.Irecv(b, left), comm.Isend([a, 100, MPI.DOUBLE], right)]
    while not Request.Testall(requests):  # testall
        pass
    assert comm.Isend(a, MPI.PROC_NULL).Wait()
    pending = comm.Iallreduce(a, b)  # iallreduce
    assert pending.Wait()
    assert (b == total).all()

    assert comm.allreduce(rank) == total  # pickled allreduce
    what = comm.bcast({"n": list(range(1000))} if rank == 0 else None)  # pickled bcast
    assert what == {"n": list(range(1000))}
    request = comm.isend("x" * 1000, right, 9)  # pickled isend
    assert comm.recv(source=left, tag=9) == "x" * 1000  # pickled recv
    request.wait()
    assert comm.irecv(source=MPI.PROC_NULL).wait() is None

    persistent = [comm.Recv_init(b, left, 11), comm.Send_init(a, right, 11)]
    for _ in range(2):
        MPI.Prequest.Startall(persistent)  # startall
        MPI.Request.Waitall(persistent)
    assert (b == left).all()
    for one in persistent:
        one.Free()

    half = comm.Split(rank % 2, rank)
    half.Allreduce(a, b)  # half
    assert (b == sum(range(rank % 2, size, 2))).all()
    ring = comm.Create_cart([size], periods=[True])
    assert isinstance(ring, MPI.Cartcomm)
    around = np.empty(200)
    ring.Neighbor_allgather(a, around)  # neighbours
    line = ring.Sub([True]).Dup()
    line.Barrier()  # barrier
    line.Free()
    graph = comm.Create_dist_graph_adjacent([left], [right])
    graph.Neighbor_alltoall(a, b)  # graph
    assert (b == left).all()
    window = MPI.Win.Allocate(80, comm=comm)
    window.Fence()
    window.Fence()
    window.Free()
    for made in (half, ring, graph):
        made.Free()


for _ in range(3):
    once()

assert COMM_WORLD == MPI.COMM_WORLD
assert pickle.loads(pickle.dumps(COMM_SELF)) is COMM_SELF
COMM_SELF.Barrier()
assert type(comm).__name__ == "Intracomm" and isinstance(comm, MPI.Intracomm)
assert comm != MPI.COMM_NULL and isinstance(MPI.REQUEST_NULL, MPI.Request)
assert issubclass(MPI.Prequest, MPI.Request)
copy = pickle.loads(pickle.dumps(MPI.Intracomm(comm)))
assert copy == comm and copy is not comm
assert type(comm) == MPI.Intracomm and {MPI.Intracomm: 1}[type(comm)] == 1  # noqa: E721
comm.free()  # mpi4py keeps its constants
assert comm and comm.Get_size() == size
persistent = comm.Send_init(b"", MPI.PROC_NULL)
assert type(MPI.Prequest.fromhandle(persistent.handle)) is MPI.Prequest
persistent.Free()
if rank == 0:
    print(f"{__name__} {__file__} {sys.argv}")

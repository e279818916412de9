"""`Shared`: the runtimes that the plans on one communicator have in common."""

from mpi4py import MPI

from ...runtime import Runtime

LASTING = ("machine", "latency and bandwidth", "shared cores")  # of a runtime's cache, what depends on the communicator alone


class Shared:
    """The runtimes of a communicator, one per number of workers, while any plan uses them."""

    _key = None

    def __init__(self):
        self._used = {}  # [runtime, plans] by number of workers
        self._known = {}  # what the caches of runtimes that were closed had found

    @classmethod
    def of(cls, comm):
        """That of `comm`; kept as its attribute, so that none outlives it for another."""
        if cls._key is None:
            cls._key = MPI.Comm.Create_keyval()
        found = comm.Get_attr(cls._key)
        if found is None:
            found = cls()
            comm.Set_attr(cls._key, found)
            found._comm = comm
        return found

    def runtime(self, workers, deadline_s):
        entry = self._used.get(workers)
        if entry is None:
            entry = self._used[workers] = [
                Runtime(self._comm, workers=workers, deadline_s=deadline_s), 0]
            entry[0].cache.update(self._known)
        entry[1] += 1
        return entry[0]

    def leave(self, workers):
        """A plan less; the last one closes the runtime (collective)."""
        entry = self._used[workers]
        entry[1] -= 1
        if entry[1] == 0:
            del self._used[workers]
            self._known |= {name: found for name in LASTING if (found := entry[0].cache.get(name))}
            entry[0].close()

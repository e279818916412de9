"""The command `overlap advise`: runs an mpi4py program as it is, with recording communicators in place of mpi4py's own.

`mpi4py.MPI` is changed when it is imported, by whomever: the program may still choose `mpi4py.rc`. What the program
raises, prints and returns to the shell stays its own. At its end a rank whose program has failed tells so and waits for
nobody. The others wait for all ranks, as they would in MPI's own end.
"""

from __future__ import annotations

import argparse
import builtins
import io
import os
import platform
import runpy
import sys
import zipfile
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from time import perf_counter
from types import ModuleType, TracebackType
from typing import Any

from ...ranks.clocks import clock_offset
from .. import values
from ..launch import launched_rank
from . import EXAMPLES, WORDS
from .calls import Classes
from .recorder import Recorder, like
from .records import RankRecord

_TAG = 7702
_GOOD, _FAILED = 0, 1


class Ending:
    """A communicator that the program does not know, made when MPI has begun. Collective.

    Parameters
    ----------
    world : mpi4py.MPI.Intracomm
        All ranks.
    """

    def __init__(self, world: Any) -> None:
        self.comm = world.Dup()
        self._begun = perf_counter(), clock_offset(self.comm)
        self._sent: list[Any] = []

    def failed(self) -> None:
        """Tell the other ranks that the program has failed on this one."""
        for other in range(1, self.comm.size) if self.comm.rank == 0 else (0,):
            self._sent.append(self.comm.Isend(bytes([_FAILED]), other, _TAG))

    def gather(self, record: RankRecord) -> tuple[list[RankRecord] | None, list[int]]:
        """Bring the records of all ranks to rank 0, if none has failed. Collective over the ranks that have not.

        Returns
        -------
        records : list of RankRecord or None
            On rank 0; None on the others, and if a rank has failed.
        failed : list of int
            On rank 0, the ranks that have failed.
        """
        comm = self.comm
        word = bytearray([_GOOD])
        failed: list[int] = []
        if comm.rank == 0:
            good: list[int] = []
            for rank in range(1, comm.size):
                comm.Recv(word, rank, _TAG)
                (failed if word[0] == _FAILED else good).append(rank)
            for rank in good:
                comm.Send(bytes([_FAILED if failed else _GOOD]), rank, _TAG)
        else:
            comm.Send(bytes([_GOOD]), 0, _TAG)
            comm.Recv(word, 0, _TAG)
        if failed or word[0] == _FAILED:
            return None, failed
        record.clock = (*self._begun, perf_counter(), clock_offset(comm))
        return comm.gather(record, root=0), []


KNOWN_LIBRARIES = ("mpi4py_fft", "shenfun", "dedalus", "fluidfft", "petsc4py", "overlap.runtime.runtime")
_MODULE = "mpi4py.MPI"
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _Finder:
    """Finds `mpi4py.MPI` as the other finders do, and has a function called when it has been imported."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self._imported = imported

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._call_after(spec)
                return spec
        return None

    def _call_after(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        imported = self._imported

        class Loader:
            create_module = staticmethod(loader.create_module)

            @staticmethod
            def exec_module(module: ModuleType) -> None:
                loader.exec_module(module)
                spec.loader = loader
                imported(module)

        spec.loader = Loader()  # type: ignore[assignment]


class Recording:
    """The recording of one program on this rank.

    Parameters
    ----------
    limit : int
        Calls that are recorded at most.
    report : callable
        Called on rank 0 with the list of `RankRecord` when the program has ended on all ranks.
    """

    def __init__(self, limit: int, report: Callable[[list[RankRecord]], None]) -> None:
        self.recorder = Recorder(limit)
        self._report = report
        self._ending: Ending | None = None
        self._ended = False
        self._classes: Classes | None = None

    def begin(self) -> None:
        """Record from the import of `mpi4py.MPI` on, or from now on if it has been imported."""
        import mpi4py  # noqa: F401 (it may install finders of its own, which must come behind ours)

        if _MODULE in sys.modules:
            self._imported(sys.modules[_MODULE], fresh=False)
        else:
            sys.meta_path.insert(0, _Finder(self._imported))

    def _imported(self, MPI: Any, fresh: bool = True) -> None:
        self._classes = Classes(MPI, self.recorder)
        self._classes.install(fresh)
        if MPI.Is_initialized() and not MPI.Is_finalized():
            self._initialized(MPI)
        for name in ("Init", "Init_thread"):
            setattr(MPI, name, self._then_initialized(MPI, getattr(MPI, name)))
        MPI.Finalize = self._ended_before(MPI.Finalize)

    def _initialized(self, MPI: Any) -> None:
        assert self._classes is not None
        self._classes.begin()
        self._ending = Ending(MPI.Intracomm(MPI.COMM_WORLD))

    def _then_initialized(self, MPI: Any, function: Any) -> Any:
        def initialize(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if self._ending is None:
                self._initialized(MPI)
            return result

        return like(initialize, function)

    def _ended_before(self, function: Any) -> Any:
        def finalize() -> None:
            self.end()
            function()

        return like(finalize, function)

    def end(self, failed: bool = False) -> None:
        """Bring the records together and report, once. Collective, unless the program has failed.

        Parameters
        ----------
        failed : bool
            The program has failed on this rank.
        """
        if self._ended:
            return
        self._ended = True
        if self._ending is None or sys.modules[_MODULE].Is_finalized():
            if not failed and not launched_rank():
                print("overlap advise: no report: the program has not used MPI through mpi4py", file=sys.stderr)
            return
        if failed:
            self._ending.failed()
            return
        sys.stdout.flush()
        record = self.recorder.record
        record.host = platform.node()
        record.modules = tuple(name for name in KNOWN_LIBRARIES if name in sys.modules)
        records, stopped = self._ending.gather(record)
        if stopped:
            words = f"the program failed on rank {', '.join(map(str, stopped))}"
            print(f"overlap advise: no report: {words}", file=sys.stderr)
        elif records is not None:
            self._report(records)


def run(program: Sequence[str], module: bool, recording: Recording) -> None:
    """Run a program to its end, as ``python PROGRAM ARGS`` or ``python -m MODULE ARGS`` would.

    Parameters
    ----------
    program : list of str
        File or module, and arguments.
    module : bool
    recording : Recording

    Raises
    ------
    BaseException
        What the program raises, SystemExit included.
    """
    name = program[0]
    sys.argv = list(program)
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.realpath(name))
    recording.begin()
    failed = True
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        elif os.path.isdir(name) or zipfile.is_zipfile(name):
            runpy.run_path(name, run_name="__main__")
        else:
            _run_file(os.path.abspath(name))
        failed = False
    except SystemExit as leaving:
        failed = leaving.code not in (None, 0)
        raise
    except BaseException as error:
        _show_only_the_program(error)
        raise
    finally:
        recording.end(failed)


def _run_file(path: str) -> None:
    """Run a file as Python does, in a main module that stays until Python ends."""
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __cached__=None)
    main.__loader__ = SourceFileLoader("__main__", path)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _show_only_the_program(error: BaseException) -> None:
    """Let Python, or the program's own hook, show the traceback of an exception without the frames of this package."""
    shown = _own(error.__traceback__)
    hook = sys.excepthook

    def show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        hook(kind, value.with_traceback(shown), shown)

    sys.excepthook = show


def _own(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames before the program, and those of recorded calls."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    begun = False
    shown = []
    for entry in entries:
        file = entry.tb_frame.f_code.co_filename
        ours = file.startswith(_FOLDER) or (not begun and file == "<frozen runpy>")
        begun = begun or not ours
        if not ours:
            shown.append(entry)
    for entry, following in zip(shown, [*shown[1:], None]):
        entry.tb_next = following
    return shown[0] if shown else None


CALLS = 300_000


def add_advise(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `overlap advise`."""
    parser.add_argument(
        "--slices",
        type=values.count,
        metavar="S",
        help="number of independent slices into which the work between two exchanges can be cut; default: 4, 16 and 64",
    )
    parser.add_argument("--workers", type=values.count, default=1, metavar="N", help="threads per rank; default: 1")
    parser.add_argument(
        "--machine",
        metavar="FILE.toml",
        help="description of the machine, written by `overlap info --measure`: costs of messages and of the runtime",
    )
    parser.add_argument(
        "--json", type=values.output, metavar="FILE", help="write the report with the times of all ranks"
    )
    parser.add_argument(
        "--timeline", type=values.output, metavar="FILE.json", help="write a timeline, for Perfetto and `overlap trace`"
    )
    parser.add_argument(
        "--calls",
        type=values.count,
        default=CALLS,
        metavar="K",
        help=f"calls of a rank to record at most; default: {CALLS}",
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, with its arguments"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program, with its arguments")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program and report.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; by default those of this process.

    Returns
    -------
    int
        0. If the program ends with another status or by an exception, that leaves this function.
    """
    parser = argparse.ArgumentParser(
        prog="overlap advise",
        description=WORDS,
        epilog="\n  ".join(["examples:", *EXAMPLES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_advise(parser)
    given = parser.parse_args(argv)
    program = given.module or given.program
    if not program:
        parser.error("expected a program: overlap advise PROGRAM ARGS, or overlap advise -m MODULE ARGS")
    if not given.module and not Path(program[0]).exists():
        parser.error(f"expected a program: {program[0]} does not exist")

    if given.machine and not Path(given.machine).is_file():
        parser.error(f"--machine: expected a file, received {given.machine}")

    def report(records: list[RankRecord]) -> None:
        try:
            _report(records, given)
        except Exception as error:  # the program has ended well, and so does the command
            print(f"overlap advise: no report: {type(error).__name__}: {error}", file=sys.stderr)

    run(program, given.module is not None, Recording(given.calls, report))
    return 0


def _report(records: list[RankRecord], given: argparse.Namespace) -> None:
    # Imported here, because the program may come to its end without a report, and begins earlier so.
    from ...timing.simulate import Machine
    from .. import timeline
    from .estimate import SLICES, estimate
    from .matching import match
    from .report import spans, text, write_json

    matched = match(records)
    machine = Machine.read(given.machine) if given.machine else None
    estimates = estimate(matched, (given.slices,) if given.slices else SLICES, given.workers, machine)
    print("\n" + text(matched, estimates, given.workers), file=sys.stderr)
    if given.json:
        write_json(matched, estimates, given.workers, given.json)
    if given.timeline:
        timeline.write_chrome(spans(matched), given.timeline)

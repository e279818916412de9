"""Compiled functions: numba's `njit` without the GIL, with a cache that works in every installation and job.

Compiling takes seconds, so compiled code is kept in files: in ``__pycache__`` beside the source, else in the user's
cache folder, or in ``NUMBA_CACHE_DIR``. numba's own cache fails in four situations, which a library cannot accept:

* If no folder can be written to, numba refuses to decorate the function; if the disk is full, the call fails. Here the
  function is compiled in memory.
* If ranks compile different signatures of a function at once, they write to the same numbered file, and one may run the
  other's code. Here the name of a file is a digest of everything that its content depends on: two ranks write to the
  same name only if they write the same code, and a file appears whole or not at all.
* If ranks start together, all of them compile the same functions. Here one rank does so, and the others wait up to some
  seconds for its file.
* numba detects changes of the function's own file only. Here the digest covers every module with compiled code from
  which the function's module has names, and the numbers in these modules.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from types import ModuleType
from typing import Any

import llvmlite
import numba
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.extending import _Intrinsic
from numba.extending import intrinsic as _intrinsic

from .. import files

if numba.config.DISABLE_JIT:
    raise ImportError("expected numba to compile, received NUMBA_DISABLE_JIT=1 in the environment")

_LIMIT_NBYTES = 2**26  # a compiled function has some 100 KiB
_TURN_S = 30.0  # time for another process to compile a function that this one needs
_others_come = True  # false after one wait without success: this process then never waits again
_LOOK_S = 0.005
_DIGEST_NBYTES = 32  # length of a SHA-256 digest

Compilation = tuple[Any, Callable[..., Any]]
"""The result of an intrinsic: its signature, and the function that writes its code."""
Values = Sequence[ir.Value]
"""The arguments of an intrinsic, while its code is written."""

intrinsic: Any = _intrinsic  # untyped: compiled code omits the first argument, the typing context


def njit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function for each signature that it is called with, and keep the code in files.

    Parameters
    ----------
    function : callable, optional
        If it is not given, a decorator is returned.
    **options
        Options of `numba.njit`. The defaults are ``nogil=True`` and ``error_model="numpy"``; without the latter, checks
        of divisors prevent the vectorisation of loops.

    Returns
    -------
    numba dispatcher, or a decorator

    Examples
    --------
    >>> from overlap.compiled import njit
    >>> @njit
    ... def total(x):
    ...     found = 0.0
    ...     for value in x:
    ...         found += value
    ...     return found
    >>> total(np.ones(3))
    3.0
    """
    if function is None:
        return lambda function: njit(function, **options)
    decorator: Any = numba.njit  # its options are typed one by one
    dispatcher = decorator(**{"nogil": True, "error_model": "numpy"} | options)(function)
    dispatcher.get_call_template = _without_constants(dispatcher.get_call_template)
    with suppress(RuntimeError, OSError):  # no folder to write to
        dispatcher._cache = _Cache(function, sorted(options.items()))
        dispatcher.compile = dispatcher._cache.in_turn(dispatcher.compile)
    return dispatcher


def _without_constants(get_call_template: Callable[..., Any]) -> Callable[..., Any]:
    """Type constants in calls by their types, so that numba does not compile a function anew for each constant."""

    def of_types(args: Any, kws: Any) -> Any:
        return get_call_template(
            tuple(types.unliteral(argument) for argument in args),
            {name: types.unliteral(argument) for name, argument in kws.items()},
        )

    return of_types


class CFunction:
    """A C function for compiled code. It is compiled when its address is first used, and kept in files, too.

    Given are the function, its numba signature, and options of `njit`.
    """

    def __init__(self, function: Callable[..., Any], signature: Any, **options: Any) -> None:
        self._function, self._signature = function, signature
        self._options: Any = {"error_model": "numpy"} | options
        self._lock = Lock()
        self._compiled: Any = None  # keeps the code

    @property
    def address(self) -> int:
        """Return the address of the function."""
        with self._lock:
            if self._compiled is None:
                compiled: Any = CFunc(self._function, normalize_signature(self._signature), {}, self._options)
                with suppress(RuntimeError, OSError):  # no folder to write to
                    compiled._cache = _Cache(self._function, sorted(self._options.items()))
                    compiled.compile = compiled._cache.in_turn(compiled.compile)
                compiled.compile()
                self._compiled = compiled
            return int(self._compiled.address)


class _Cache(FunctionCache):
    """numba's cache of a function, with `_CodeFiles` as its files."""

    def __init__(self, function: Callable[..., Any], options: Any) -> None:
        super().__init__(function)
        self._cache_file: Any = _CodeFiles(
            self._impl.locator.get_cache_path(), self._impl.filename_base, function, options
        )

    def in_turn(self, compile_: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that compiles and then releases its file locks, even if compiling fails."""

        def compiled(*args: Any) -> Any:
            # numba's own lock ends before the turns do: two threads would close each other's files.
            with global_compiler_lock:
                try:
                    return compile_(*args)
                finally:
                    self._cache_file.end_turns()

        return compiled

    def save_overload(self, signature: Any, result: Any) -> None:
        with suppress(OSError):  # a full disk, or a folder that cannot be written to any more
            super().save_overload(signature, result)


class _CodeFiles:
    """The files of one function: ``NAME.SOURCE-KEY.nbc``, digests of the source and of the signature."""

    def __init__(self, folder: str, name: str, function: Callable[..., Any], options: Any) -> None:
        self._folder = Path(folder)
        self._name = name
        self._function = function
        self._options = options
        self._source: str | None = None
        self._turns: dict[Path, int] = {}  # open files, locked while this process compiles code that others wait for

    def load(self, key: Iterable[object]) -> Any:
        path = self._path(key)
        if path is None:
            return None
        code = _code_of(path)
        if code is None and self._take_turn(path):
            code = _code_of(path)
        return code

    def _take_turn(self, path: Path) -> bool:
        """Wait while another process compiles the same code; return whether one did."""
        global _others_come
        waited = False
        if not _others_come or path in self._turns:
            return False
        with suppress(OSError):  # no folder to write to, or one without locks
            turn = os.open(path.with_suffix(".turn"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._turns[path] = turn
            end_s = monotonic() + _TURN_S
            while _others_come and not _locked(turn):
                waited = True
                _others_come = monotonic() < end_s  # false if the other process was stopped or is slow
                sleep(_LOOK_S)
        return waited

    def end_turns(self) -> None:
        """Release the locks, so that other processes load the code or, if compiling has failed here, compile it."""
        for path, turn in self._turns.items():
            path.with_suffix(".turn").unlink(missing_ok=True)
            os.close(turn)
        self._turns.clear()

    def save(self, key: Iterable[object], data: Any) -> None:
        path = self._path(key)
        if path is None:
            return
        for old in self._folder.glob(f"{self._name}.*.nbc"):
            if not old.name.startswith(f"{self._name}.{self._source}-"):
                old.unlink(missing_ok=True)
        code = dumps(data)
        files.write(path, hashlib.sha256(code).digest() + code)

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._name}.*.nbc"):
            path.unlink(missing_ok=True)

    def _path(self, key: Iterable[object]) -> Path | None:
        """Return the file for a signature; None if the text of a type is valid in this process only."""
        text = repr([str(part) for part in key])
        if " at 0x" in text:
            return None
        if self._source is None:  # computed late, when all modules are complete
            self._source = source_digest(self._function, self._options)
        return self._folder / f"{self._name}.{self._source}-{_digest(text.encode())}.nbc"


def _locked(turn: int) -> bool:
    try:
        flock(turn, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _code_of(path: Path) -> Any:
    """Load code from a file; return None if there is no such file or if it is damaged."""
    with suppress(Exception):
        content = files.read(path, _LIMIT_NBYTES)
        digest, code = content[:_DIGEST_NBYTES], content[_DIGEST_NBYTES:]
        if hashlib.sha256(code).digest() == digest:  # before anything is unpickled
            return pickle.loads(code)
    return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def source_digest(function: Callable[..., Any], options: Any = ()) -> str:
    """Return a digest of everything that the code of a function depends on, except signature and processor."""
    parts = [numba.__version__, llvmlite.__version__, sys.version, repr(options)]
    for name, module in sorted(_modules_of_code(function).items()):
        path = getattr(module, "__file__", None)
        parts += [name, _digest(Path(path).read_bytes()) if path else ""]
        parts += [
            f"{key}={value!r}"
            for key, value in sorted(vars(module).items())
            if isinstance(value, (int, float, complex))
        ]
    return _digest("\n".join(parts).encode())


def _modules_of_code(function: Callable[..., Any]) -> dict[str, ModuleType]:
    """Find the modules with compiled code that a function's module reaches through its names."""
    modules: dict[str, ModuleType] = {}
    todo: list[Any] = [function.__module__]
    while todo:
        name = todo.pop()
        module = sys.modules.get(name)
        if module is None or name in modules or name.partition(".")[0] in ("numba", "numpy"):
            continue
        values = tuple(vars(module).values())
        if name != function.__module__ and not any(isinstance(value, (Dispatcher, _Intrinsic)) for value in values):
            continue
        modules[name] = module
        todo += {
            value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) for value in values
        } - {None}
    return modules

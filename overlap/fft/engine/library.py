"""FFTW's C functions, from the libraries that OVERLAP_FFTW names, or else from those with which pyfftw is linked.

pyfftw itself is not imported.

Importing pyfftw takes a third of a second, nearly all of it for interfaces to scipy that no plan uses. So its extension
is loaded as a shared library only: none of its code runs, but the libraries with which it is linked are loaded, from
the folder of a wheel, from conda or from the system. A program that imports pyfftw, before or later, uses the same
libraries, and so shares FFTW's wisdom with plans.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np

from ...compiled.memory import address_of
from ...errors import InputError

ENVIRONMENT = "OVERLAP_FFTW"  # a folder with FFTW's shared libraries, or one of these libraries
PREFIXES = {"F": "fftwf_", "D": "fftw_", "G": "fftwl_"}  # character of the complex dtype -> prefix of FFTW's names


class Precision:
    """FFTW in one precision; its functions' names begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        # How often this library has searched for a plan or changed the wisdom: while this number is the same, so is the
        # wisdom.
        self.searched = 0
        initializers = _libraries().all_of(prefix + "init_threads")
        self._has_threads = bool(initializers)
        # Before any planning, as in pyfftw: wisdom depends on it, and FFTW would free all plans when another package,
        # such as mpi4py-fft, were the first to set a number of threads.
        for initialize in initializers:
            initialize()

    def function(self, name: str, result: Any = None) -> Any:
        """Return a C function by its name without the prefix; `result` is the ctypes type of its result."""
        function = _libraries()[self._prefix + name]  # indexing makes a new function object, unlike attribute access
        function.restype = result
        return function

    def plan_with_one_thread(self) -> None:
        """Make later plans use one thread, whatever pyfftw has set."""
        if self._has_threads:
            self.function("plan_with_nthreads")(ctypes.c_int(1))

    def wisdom(self) -> bytes:
        """Return FFTW's wisdom of this process."""
        text = self.function("export_wisdom_to_string", ctypes.c_void_p)()
        try:
            return ctypes.string_at(text)
        finally:
            ctypes.CDLL(None).free(ctypes.c_void_p(text))

    def take_wisdom(self, text: bytes) -> bool:
        """Add wisdom; return False if it is not wisdom of this version."""
        self.searched += 1
        return bool(self.function("import_wisdom_from_string", ctypes.c_int)(text))

    def forget_wisdom(self) -> None:
        """Forget all wisdom."""
        self.searched += 1
        self.function("forget_wisdom")()

    def alignment_of(self, array: np.ndarray) -> int:
        """Return FFTW's alignment of an array's address; 0 is the best."""
        return self.function("alignment_of", ctypes.c_int)(ctypes.c_void_p(address_of(array)))

    def version(self) -> str:
        """Return the version of FFTW, such as ``"3.3.10"``."""
        text = self._version_text()
        number = re.search(r"\d+(\.\d+)+", text)
        return number.group() if number else text

    def described(self) -> str:
        """Return version, instruction sets and file, such as ``"3.3.10-sse2-avx2, /usr/lib/libfftw3.so.3"``."""
        return f"{self._version_text().removeprefix('fftw-')}, {_libraries().file_of(self._prefix + 'version')}"

    def _version_text(self) -> str:
        """Return FFTW's own text: its version and instruction sets."""
        where = ctypes.addressof(
            ctypes.c_char.in_dll(_libraries().holder(self._prefix + "version"), self._prefix + "version")
        )
        return ctypes.string_at(where).decode("ascii")


@cache
def precision(char: str) -> Precision | None:
    """Return FFTW in the precision of the complex dtype "F", "D" or "G"; None if it is not installed."""
    prefix = PREFIXES[char]
    return Precision(prefix) if prefix + "execute_dft" in _libraries() else None


class _Libraries:
    """Finds the functions of all precisions by their names, in several shared libraries.

    The functions hold the GIL, because FFTW's planner must not be used by two threads at a time.
    """

    def __init__(self, libraries: Sequence[ctypes.PyDLL]) -> None:
        self._libraries = libraries

    def __contains__(self, name: str) -> bool:
        return any(hasattr(library, name) for library in self._libraries)

    def __getitem__(self, name: str) -> Any:
        return self.holder(name)[name]

    def all_of(self, name: str) -> list[Any]:
        """Return the functions of all libraries that have one of that name."""
        return [library[name] for library in self._libraries if hasattr(library, name)]

    def holder(self, name: str) -> ctypes.PyDLL:
        """Return the library that has a function or variable."""
        return next(library for library in self._libraries if hasattr(library, name))

    def file_of(self, name: str) -> str:
        """Return the file that has a variable, as the system has loaded it."""
        address = ctypes.addressof(ctypes.c_char.in_dll(self.holder(name), name))
        for line in Path("/proc/self/maps").read_text().splitlines():
            words = line.split(maxsplit=5)
            start, stop = (int(bound, 16) for bound in words[0].split("-"))
            if start <= address < stop and len(words) == 6:
                return words[5]
        return self.holder(name)._name


@cache
def _libraries() -> _Libraries:
    """Load FFTW: the libraries that the environment names, or those with which pyfftw is linked."""
    if named := os.environ.get(ENVIRONMENT):
        return _Libraries(_named(Path(named)))
    return _Libraries([_of_pyfftw()])


def _named(path: Path) -> list[ctypes.PyDLL]:
    """Load the libraries of single and double precision in a folder, or beside a library of one of them."""
    folder = path if path.is_dir() else path.parent
    names = {kind: f"libfftw3{kind}" for kind in ("", "f")}
    chosen = {kind: [path] if path.name.startswith((f"{name}.", f"{name}-")) else [] for kind, name in names.items()}
    libraries = [
        _first([*chosen[kind], *_files(folder, name)], f"fftw{kind}_execute_dft") for kind, name in names.items()
    ]
    if None in libraries:
        raise InputError(
            f"expected {ENVIRONMENT} to name a folder with the shared libraries of FFTW in double and in single "
            f"precision (libfftw3.so and libfftw3f.so), or one of them, received {str(path)!r}"
        )
    libraries += [
        _first(_files(folder, name + threads), f"fftw{kind}_init_threads")
        for kind, name in names.items()
        for threads in ("_threads", "_omp")
    ]
    return [library for library in libraries if library is not None]


def _files(folder: Path, name: str) -> list[Path]:
    """Return the files of a shared library in a folder: of Linux, of macOS, and as they are named in a wheel."""
    patterns = f"{name}.so*", f"{name}.*dylib", f"{name}-*.so*"
    return [file for pattern in patterns for file in sorted(folder.glob(pattern))]


def _first(files: Sequence[Path], function: str) -> ctypes.PyDLL | None:
    """Load the first of the files that can be loaded and has a function; return None if there is none."""
    for file in files:
        with suppress(OSError):
            if hasattr(library := ctypes.PyDLL(str(file)), function):
                return library
    return None


def newer_on_system(version: str) -> str | None:
    """Return version and folder of the newest FFTW in the system's folders if it is newer than `version`, as text.

    The files are read, not loaded.
    """
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), "/usr/local/lib", "/usr/lib64", "/usr/lib"]
    folders += map(str, Path("/usr/lib").glob("*-linux-gnu"))
    found = []
    for folder in filter(None, folders):
        versions = [_version_in(Path(folder), f"libfftw3{kind}.so*") for kind in ("", "f")]
        if all(versions):
            found.append((min(versions), folder))
    newest, folder = max(found, default=((), ""))
    if newest <= tuple(map(int, re.findall(r"\d+", version))):
        return None
    return f"{'.'.join(map(str, newest))} in {folder}"


def _version_in(folder: Path, pattern: str) -> tuple[int, ...]:
    """Return the version of a library of FFTW; () if there is none that can be read."""
    for file in sorted(folder.glob(pattern)):
        with suppress(OSError):
            if text := re.search(rb"fftw-(\d+)\.(\d+)\.(\d+)", file.read_bytes()):
                return tuple(map(int, text.groups()))
    return ()


def _of_pyfftw() -> ctypes.PyDLL:
    """Load pyfftw's extension, and so the libraries with which it is linked."""
    try:
        libraries = ctypes.PyDLL(str(_extension()))
    except OSError:  # it can be loaded only after an import of the package
        import pyfftw

        libraries = ctypes.PyDLL(pyfftw.pyfftw.__file__)
    if not hasattr(libraries, PREFIXES["D"] + "execute_dft"):
        raise ImportError("expected pyfftw to be linked with a shared library of FFTW, found none")
    return libraries


def _extension() -> Path:
    """Return the file of pyfftw's extension; raise `OSError` if it is not in the package's folder."""
    spec = importlib.util.find_spec("pyfftw")  # runs nothing of the package
    if spec is None:
        raise ImportError("expected the package pyfftw to be installed, found none")
    for folder in spec.submodule_search_locations or ():
        for suffix in EXTENSION_SUFFIXES:
            if (file := Path(folder, f"pyfftw{suffix}")).exists():
                return file
    raise OSError(f"expected pyfftw's extension in {spec.submodule_search_locations}, found none")

"""What tests that are made of the public names need: recipes of good arguments, bad values, rows.

A `Subject` is an object, or what a function needs; it tells how to make one and what its calls are given. The calls
themselves, and their parameters, are found by inspection, so that what is added later is tested, or says that it has no
recipe. A row is one call with one bad value in place of one argument.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any
from zlib import crc32

import numpy as np
from mpi4py import MPI

# Requests made as arguments of calls that are refused.
warnings.filterwarnings("ignore", ".* was never awaited, so nothing was done", RuntimeWarning)

OBJECT = frozenset(dir(object)) | {"__weakref__", "__dict__", "__module__", "__slots__", "__abstractmethods__"}


def each(names: str, reason: str) -> dict[str, str]:
    """Give each of several names, in one text, the same reason."""
    return dict.fromkeys(names.split(), reason)


MEANS_NOTHING = each(
    """
    __annotations__ __annotate__ __annotate_func__ __annotations_cache__ __class_getitem__ __orig_bases__ __parameters__
    __static_attributes__ __firstlineno__ __dataclass_fields__ __dataclass_params__ __match_args__ __array_priority__
    __array_ufunc__ __init__ __del__ __exit__ __type_params__ __replace__
    """,
    "a special method that computes nothing of the object",
)


class Refused(Exception):
    """What a conversion of `Raising` raises: no class that anyone expects."""


class Raising:
    """An object none of whose conversions succeeds."""

    def _refuse(self, *args: object, **kwargs: object) -> Any:
        raise Refused("this object has no value")

    __array__ = __index__ = __int__ = __float__ = __complex__ = __bool__ = _refuse
    __len__ = __iter__ = __getitem__ = __fspath__ = _refuse


def bad_values(good: object) -> dict[str, Any]:
    """Values that are wrong for most arguments, and those that are wrong for one like `good`, by name."""
    values = {"None": None, "text": "nonsense", "nan": float("nan"), "raising": Raising()}
    if isinstance(good, np.ndarray):
        plain = np.asarray(good)
        longer = (*plain.shape[:-1], plain.shape[-1] + 1) if plain.ndim else (2,)
        objects = np.empty(plain.shape, object)
        objects[...] = Raising
        return values | {"shape": np.zeros(longer, plain.dtype), "texts": plain.astype("U4"), "objects": objects}
    if isinstance(good, bool):
        return values
    if isinstance(good, Integral):
        return values | {"negative": -1, "fraction": 1.5, "huge": 2**70}
    if isinstance(good, Real):
        return values | {"negative": -1.0, "infinite": float("inf")}
    if isinstance(good, tuple | list):
        longer = (*good, good[-1]) if good else (1,)
        return values | {"empty": (), "longer": longer, "members": ("nonsense",) * max(1, len(good))}
    if isinstance(good, Mapping):
        return values | {"unknown": {"nonsense": 1}}
    if isinstance(good, str):
        return values | {"number": 7}
    return values


@dataclass(frozen=True)
class Call:
    """How to make one call, and what of it is special.

    Attributes
    ----------
    good : callable
        ``good(lab, subject)`` gives arguments by name, beside those that a name alone tells (`ARGUMENTS`).
    right : callable
        ``right(lab, subject, arguments, result)`` raises unless the result is right.
    legal : dict
        ``"parameter=value"``, or a parameter for all values, to the reason why it is allowed. All the same the ranks'
        outcomes must be alike.
    untold : dict
        Parameters without which a rank cannot tell the others, with the reason: all ranks are given the bad value.
    local : bool
        The call concerns its own rank alone: nobody else hears of an error.
    run : callable
        ``run(lab, function, *args, **kwargs)``: makes the call, and whatever it takes until all ranks know of an error.
    done : callable
        ``done(result)`` frees what the call has made.
    costly : bool
        A good call follows the last row only.
    trusted : str
        Why bad arguments are not tested.
    skipped : dict
        ``"parameter=value"`` to the reason why a row is left out.
    """

    good: Callable[[Any, Any], dict[str, Any]] = lambda lab, subject: {}
    right: Callable[[Any, Any, dict[str, Any], Any], object] = lambda lab, subject, arguments, result: None
    legal: Mapping[str, str] = field(default_factory=dict)
    untold: Mapping[str, str] = field(default_factory=dict)
    local: bool = False
    run: Callable[..., Any] = lambda lab, function, *args, **kwargs: function(*args, **kwargs)
    done: Callable[[Any], object] = lambda result: None
    costly: bool = False
    trusted: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """An object whose calls are tested, or what a function is tested with.

    Attributes
    ----------
    names : tuple of str
        The public names that it stands for, ``"overlap.FFT2"``.
    make : callable
        ``make(lab)``, collective.
    calls : dict of str to Call
        By the name of a method, or the function itself.
    close : callable or None
        ``close(lab, subject)`` ends it; None where it has no end.
    words : tuple of str
        One of which the `ClosedError` says.
    use : tuple of str, or callable
        The calls of a first use; or ``use(lab, subject)``.
    working : dict of str to str
        What works after the end, with the reason.
    internal : dict of str to str
        Methods without an underscore that are no user's, with the reason.
    once : bool
        By its documentation an error ends it: the next good call is one of another object.
    kind : type, optional
        The class whose members are public, where that is not the object's own.
    functions : dict of str to callable
        Functions that are called instead of methods.
    refuses_few : str
        Why all ranks raise an `InputError`, here or in the calls, if some rank holds nothing.
    """

    names: tuple[str, ...]
    make: Callable[[Any], Any]
    calls: Mapping[str, Call]
    close: Callable[[Any, Any], object] | None = None
    words: tuple[str, ...] = ()
    use: tuple[str, ...] | Callable[[Any, Any], object] = ()
    working: Mapping[str, str] = field(default_factory=dict)
    internal: Mapping[str, str] = field(default_factory=dict)
    once: bool = False
    kind: type | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    refuses_few: str = ""

    @property
    def name(self) -> str:
        return self.names[0]

    def function(self, subject: object, name: str) -> Callable[..., Any]:
        """The function of a call."""
        return self.functions[name] if name in self.functions else getattr(subject, name)


def constructor(name: str, function: Callable[..., Any], call: Call) -> Subject:
    """Make the subject of a function that needs no object: a constructor, by its public name."""
    short = name.rpartition(".")[2]
    return Subject((f"constructor of {name}",), lambda lab: None, {short: call}, functions={short: function})


class Lab:
    """What is at hand on every rank: a communicator for the test's own messages, and one for the subjects.

    With `few` the last rank holds nothing of the subjects' arrays.
    """

    def __init__(self, comm: MPI.Intracomm, few: bool = False) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.holders = comm.size - few  # ranks that hold something
        self._own = comm.Dup()  # where no call of a subject's can be mistaken for a test's
        self.ring = comm.Create_cart([comm.size], [True])  # for calls of neighbours
        self.last = comm.rank == comm.size - 1  # the rank that is given what is bad
        self.one: Any = None  # the subject
        self.files: set[str] = set()  # to be removed
        self.lost: list[Any] = []  # what cannot be freed, for ranks differ
        self.owners: dict[int, Any] = {}  # of subjects that other objects give: these, by the subject's id

    def given_by(self, owner: object, one: Any) -> Any:
        """Remember that `owner` is to be closed in place of `one`."""
        self.owners[id(one)] = owner
        return one

    def owner_of(self, one: object) -> Any:
        """What gave a subject."""
        return self.owners.pop(id(one))

    def count(self, each: int) -> int:
        """How many of something this rank holds, if every holder has `each`."""
        return each if self.rank < self.holders else 0

    def gathered(self, value: object) -> list[Any]:
        """The values of all ranks."""
        return self._own.allgather(value)

    def end(self) -> None:
        """Free the test's own communicators (collective)."""
        self._own.Free()
        self.ring.Free()


def members_of(public: type) -> dict[str, object]:
    """The public methods, operators and properties of a class, of its bases in this library too, by name."""
    found: dict[str, object] = {}
    for kind in reversed(public.__mro__):
        if not kind.__module__.startswith("overlap"):
            continue
        for name, value in vars(kind).items():
            special = name.startswith("__") and name.endswith("__")
            if (special and (name in OBJECT or name in MEANS_NOTHING)) or (name.startswith("_") and not special):
                continue
            if isinstance(value, property) and (value.__doc__ or "").startswith("Old name of"):
                continue  # as the method it gives
            if callable(value) or isinstance(value, property | classmethod | staticmethod):
                found[name] = value
    return found


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def arguments_of(
    call: Call, function: Callable[..., Any], lab: Lab, subject: object, common: Mapping[str, Any]
) -> dict:
    """Good arguments of a call by name, without those that keep their defaults."""
    given = call.good(lab, subject)
    found = {}
    for name, parameter in parameters_of(function).items():
        if name in given:
            found[name] = given[name]
        elif (
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            or parameter.default is not parameter.empty
        ):
            continue
        elif name in common:
            value = common[name]
            found[name] = value(lab) if callable(value) and not isinstance(value, type) else value
        else:
            raise LookupError(f"no good value is known for the argument {name} of {function}")
    if unknown := set(given) - set(found):
        raise LookupError(f"{function} has no arguments {sorted(unknown)}")
    return found


def called(call: Call, function: Callable[..., Any], lab: Lab, arguments: Mapping[str, Any]) -> Any:
    """Make a call with arguments by name."""
    signature = inspect.signature(function)
    bound = inspect.BoundArguments(signature, {n: arguments[n] for n in signature.parameters if n in arguments})
    return call.run(lab, function, *bound.args, **bound.kwargs)


def wrong_arguments(
    function: Callable[..., Any], good: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any], bool]]:
    """All ways in which one argument is bad: parameter, name of the value, arguments, whether None is the default."""
    for name, parameter in parameters_of(function).items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            some = tuple(good.get(name, ()))
            yield name, "more", {**good, name: (*some, *(some[-1:] or (None,)))}, False
            if some:
                yield name, "fewer", {**good, name: some[:-1]}, False
                for value, bad in bad_values(some[0]).items():
                    yield name, value, {**good, name: (bad, *some[1:])}, False
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield name, "unknown", {**good, name: {**good.get(name, {}), "nonsense": 1}}, False
        else:
            default = None if parameter.default is parameter.empty else parameter.default
            none = parameter.default is None or "None" in str(parameter.annotation)
            for value, bad in bad_values(good.get(name, default)).items():
                yield name, value, {**good, name: bad}, value == "None" and none


def representative(of: str, choices: Mapping[str, Any]) -> tuple[str, Any]:
    """The bad value of a parameter, or the parameter of a call, that stands for all where there is no time for all."""
    return list(choices.items())[crc32(of.encode()) % len(choices)]


class Watch:
    """Ends the process, saying which row is under way and where all threads are, when that takes too long.

    The row is also all that standard output holds, should the process die.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._row, self._number, self._times = seconds, "", 0, 1.0
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._look, name="rows", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.row("")
        with self._changed:
            self._number = -1
            self._changed.notify()
        self._thread.join()

    def row(self, text: str, times: float = 1.0) -> None:
        """Begin a row, which may take so many times as long as others."""
        with self._changed:
            self._row, self._number, self._times = text, self._number + 1, times
            self._changed.notify()
        try:
            os.ftruncate(1, 0)
            os.pwrite(1, f"row under way: {text}\n".encode() if text else b"", 0)
        except OSError:  # no file
            pass

    def _look(self) -> None:
        import faulthandler

        with self._changed:
            while self._number >= 0:
                number = self._number
                if not self._changed.wait(self._seconds * self._times) and number == self._number and self._row:
                    os.write(2, f"row hangs: {self._row}\n".encode())
                    faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
                    os._exit(3)

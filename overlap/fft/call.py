"""`Call`: a call of a transform with certain arrays; `Configuration`: the calls of a transform with certain settings.

A program calls a transform with the same few arrays again and again. That they fit, and their tables, stay valid for
every array of the same type, address and layout: an array such as ``u[0]`` is a new object each time. A distributed
array must have the same distribution, too. So the addresses of a call are kept under the `key_of` its arguments, and
the next such call is checked no more. The arrays are not kept alive.
"""

from __future__ import annotations

from array import array as words
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from operator import ne
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import DistArray
from ..compiled.memory import address_of
from ..runtime.plan_call import CallKind, PlanCall
from .array_spec import ArraySpec
from .engine.fftw import REQUIRED_ALIGNMENT, empty
from .engine.program import ArrayReference
from .engine.schedule import Schedules, addresses_of
from .planning.settings import Settings

CALLS = 32  # number of calls whose arrays are known
CONTIGUOUS = 1 | 2  # flags of an array, in the order of C or of Fortran
LEAST_NBYTES = 1 << 20  # smaller memory of results comes from the process's heap


@dataclass(eq=False)
class Configuration:
    """What a transform has made for certain settings."""

    settings: Settings
    kernels: Any  # a `StagedTransform`, `PlaneComposition` or `FieldComposition`
    parts: Sequence[Any] = ()  # the slices of a call
    slots: Sequence[Any] = ()  # the buffers of every slot, views of `memory`
    memory: np.ndarray | None = None
    nbytes_in_flight: int = 0  # memory of all slots on this rank
    kinds: dict[str, CallKind] = field(default_factory=dict)  # the kinds of calls: "whole", "compute", "exchange"
    share: Configuration | None = None  # of the transform of shared inputs
    schedules: Schedules = field(default_factory=Schedules)
    # By the `key_of` their arguments: calls, the addresses of their arrays, and what has to exist as long as the key.
    known: dict[tuple[Any, ...], tuple[PlanCall, words[int], Any]] = field(default_factory=dict)

    def keep(self, what: str, arrays: tuple[Any, ...], out: Any, call: PlanCall, addresses: words[int]) -> None:
        """Keep the addresses of a call's arrays, which fit; if it makes its results, their addresses do not matter."""
        if len(self.known) == CALLS:
            del self.known[next(iter(self.known))]
        # The `id` of an object in the key is that of another one as soon as the object has gone.
        alive = [
            (given.dtype, isinstance(given, DistArray) and (given._where, given.comm))
            for given in given_of(arrays, out)
        ]
        self.known[key_of(what, arrays, out)] = call, addresses, alive

    def forget(self) -> None:
        """Forget all calls, which are not valid any more."""
        self.known.clear()
        self.schedules.forget()


def key_of(what: str, arrays: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return everything on which the tables of a call depend and in which its arguments may differ or change."""
    key: list[Any] = [what, type(out)]
    for given in arrays if out is None else given_of(arrays, out):
        if type(given) is DistArray:  # its distribution determines its shape, which cannot be set
            flags = given.flags.num
            key += (address_of(given), flags, id(given.dtype), id(given._where), id(given.comm))
            if not flags & CONTIGUOUS:  # else the shape determines the strides
                key.append(given.strides)
        elif isinstance(given, np.ndarray):
            key += (type(given), address_of(given), given.flags.writeable, given.shape, given.strides, id(given.dtype))
            if isinstance(given, DistArray):
                key += (id(given._where), id(given.comm))
        else:
            key.append(None)
    return tuple(key)


def given_of(arrays: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return the arguments of a call, one after the other."""
    if out is None:
        return arrays
    return (*arrays, *out) if type(out) is tuple else (*arrays, out)


class Call:
    """A call of a transform with certain arrays: `checked`, bound to its tables, run."""

    returned: Any = None  # what the user's call returns: a `DistArray`, or a tuple of them

    def __init__(self, transform: Any, what: str, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        # The arrays fit, and their batch axes are joined. `what`: "whole", "compute" or "exchange".
        self._transform, self._what, self._inputs, self._outputs = transform, what, inputs, outputs
        self._results: Sequence[np.ndarray] = outputs
        self._copies = False  # besides what its tables say

    @classmethod
    def checked(cls, transform: Any, what: str, arrays: tuple[Any, ...], out: Any) -> Call:
        """Return the call with a user's arguments; raise on all ranks what is wrong on one (collective then)."""
        results = out if isinstance(out, tuple) else (out,) * len(transform.outputs)
        try:
            problem: str | Exception | None = _problem(transform, arrays, out, results)
            if problem is None:
                if out is None:
                    results = transform.made_results()
                inputs = [spec.planes(array) for spec, array in zip(transform.inputs, arrays)]
                outputs = [spec.planes(array) for spec, array in zip(transform.outputs, results)]
        except Exception as error:  # perhaps on this rank alone
            problem = error
        if problem is not None:
            transform.refuse(problem, what)
        call = cls(transform, what, inputs, outputs)
        call._results = results
        call._copies = any(map(ne, map(address_of, (*arrays, *results)), map(address_of, (*inputs, *outputs))))
        call.returned = out if out is not None else results if len(results) > 1 else results[0]
        return call

    def bind(self) -> tuple[PlanCall, words[int], list[np.ndarray]]:
        """Return the call of compiled code, the addresses of its arrays, and those in which FFTW works."""
        transform = self._transform
        made, inputs = transform.configuration, self._inputs
        targets = [
            array if not spec.natural or fits(array) else empty(array.shape, array.dtype)
            for spec, array in zip(transform.outputs, self._outputs)
        ]
        addresses = addresses_of((*inputs, *targets))
        addresses.extend([0] * made.kernels.returned)  # addresses of the arrays that the user's function returns
        return transform.recorded((*inputs, *targets)).call(made.kinds[self._what]), addresses, targets

    def run(self) -> None:
        """Make the call (collective)."""
        transform = self._transform
        transform.before(self._inputs)
        try:
            self._call, self._addresses, targets = self.bind()
        except Exception as error:  # perhaps on this rank alone
            transform.refuse(error, self._what)
        self._call.make(self._addresses)
        for result, output, target in zip(self._results, self._outputs, targets):
            if target is not output:
                output[...] = target
                self._copies = True
            if self._copies and not np.may_share_memory(result, output):
                result[...] = output.reshape(result.shape)

    def keep(self, arrays: tuple[Any, ...], out: Any) -> None:
        """Keep the addresses for later calls with such arrays, if these need nothing else."""
        if not self._copies and not self._transform.shares:
            self._transform.configuration.keep(self._what, arrays, out, self._call, self._addresses)


def _problem(transform: Any, arrays: tuple[Any, ...], out: Any, results: tuple[Any, ...]) -> str | None:
    """Return what is wrong with the arguments of a call, or None."""
    inputs, outputs = transform.inputs, transform.outputs
    if len(arrays) != len(inputs):
        return f"expected {len(inputs)} input array(s), received {len(arrays)}; an array for the result is out=array"
    for spec, argument in zip(inputs, arrays):
        if problem := spec.problem(argument, "an input"):
            return problem
    if out is None:
        return None
    if len(results) != len(outputs) or isinstance(out, tuple) != (len(results) > 1):
        return (
            f"expected out to be {len(outputs)} array(s), a tuple if more than one, "
            f"received {type(out).__name__} of {len(results)}"
        )
    for position, (spec, argument) in enumerate(zip(outputs, results)):
        if problem := spec.target_problem(argument, "out"):
            return problem
        if any(np.may_share_memory(argument, reference) for reference in (*arrays, *results[:position])):
            return "expected out to share no memory with an input or another output, received arrays that do"
    return None


def natural_parts(located: Sequence[ArrayReference], specs: Sequence[ArraySpec]) -> list[ArrayReference]:
    """Return located arrays with the order of axes of the transforms."""
    return [reference.part(spec.as_transformed(reference.array)) for reference, spec in zip(located, specs)]


def fits(array: np.ndarray) -> bool:
    """Return whether plans for contiguous, aligned arrays can work on this one."""
    return array.flags.c_contiguous and address_of(array) % REQUIRED_ALIGNMENT == 0


class ResultMemory:
    """Makes uninitialised, aligned arrays of one shape and type.

    Memory is taken back when its last view is deleted, in whatever thread.
    """

    def __init__(self, shape: Sequence[int], dtype: DTypeLike) -> None:
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        self._nbytes = prod(self._shape) * self._dtype.itemsize
        self._free: deque[np.ndarray] = deque(maxlen=1)

    def empty(self) -> np.ndarray:
        """Make an array whose memory is not in use."""
        if self._nbytes < LEAST_NBYTES:
            return empty(self._shape, self._dtype)
        try:
            memory = self._free.pop()
        except IndexError:
            memory = empty(self._shape, self._dtype)
        return np.asarray(_Lent(memory, self._free))


class _Lent:
    """The owner of a result's memory, to which all views refer; numpy skips intermediate arrays."""

    def __init__(self, memory: np.ndarray, free: deque[np.ndarray]) -> None:
        self._memory, self._free = memory, free

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)

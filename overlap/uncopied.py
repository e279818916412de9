"""Objects that belong to their process and ranks: they can be neither copied nor pickled."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from .errors import InputError


class Uncopied:
    """Base class of objects with communicators, threads or shared memory, which a copy would free a second time."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # Python calls this for `copy.copy`, `copy.deepcopy` and pickles.
        raise InputError(
            f"expected an object that can be copied or pickled, received a {type(self).__name__}, which belongs to its "
            "process and its ranks: make another one with the same arguments"
        )

"""Objects that belong to their process and ranks: they can be neither copied nor pickled."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from .errors import InputError


class Uncopied:
    """Base of what holds communicators, threads or memory of several ranks: a copy would free them twice."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # Python asks this for `copy.copy`, `copy.deepcopy` and pickles alike.
        raise InputError(
            f"expected something that can be copied or pickled, received a {type(self).__name__}, which belongs to its "
            "process and its ranks: make another one with the same arguments"
        )

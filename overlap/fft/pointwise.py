"""`Pointwise`: arrays of the spectrum to real space, a function of them, and back, as one pipeline.

What a slice does is in its kernels: `engine.plane_blocks` for `FFT2.pointwise`, `engine.plane_brackets` for `Bracket`,
and `field_composition` where the function acts on whole fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..runtime import AsyncComm, Runtime
from .array_spec import ArraySpec
from .engine.plane_composition import PlaneComposition
from .field_composition import FieldComposition
from .planning.settings import Settings
from .transform import FieldTransform, Transform


class Pointwise(Transform):
    """A function of arrays in real space, made to act on spectral ones.

    See `FFT2.pointwise`, `FFT3.pointwise` and `Bracket`.

    Parameters
    ----------
    runtime : Runtime
    comms : sequence of AsyncComm
    make : callable
        ``make(effort)`` makes the kernels with an effort of FFTW's planning.
    effort : str or None
        The requested effort of FFTW's planning.
    inputs, outputs : tuple of ArraySpec
        The arrays of the spectrum; shared inputs are last.
    share : FieldTransform, optional
        The transform of the shared inputs to the kept fields of a `PlaneComposition`.

    Examples
    --------
    >>> with overlap.FFT2(comm, (2, 16, 16), dtype="f8", norm="forward") as plan:
    ...     square = plan.pointwise(lambda a: a * a, dealias="3/2")
    ...     u = plan.forward(plan.real.from_function(lambda y, x: np.sin(x)))
    ...     v = plan.backward(square(u))
    >>> bool(np.allclose(v, np.sin(2 * np.pi * np.arange(16) / 16) ** 2))
    True
    """

    def __init__(
        self,
        runtime: Runtime,
        comms: Sequence[AsyncComm],
        make: Callable[[str | None], PlaneComposition | FieldComposition],
        effort: str | None,
        inputs: tuple[ArraySpec, ...],
        outputs: tuple[ArraySpec, ...],
        share: FieldTransform | None = None,
    ) -> None:
        super().__init__(runtime, comms, make(effort), make, inputs, outputs, outputs[0].slices)
        self._share, self.shares = share, share is not None

    def release(self) -> None:
        super().release()
        if self._share is not None:
            self._share.release()

    def configure(self, settings: Settings, count: int | None = None) -> None:
        super().configure(settings, count)
        if self._share is not None:
            self._share.configure(settings)
            made = self.configuration
            made.share = self._share.configuration
            made.nbytes_in_flight += self._share.nbytes_in_flight

    def before(self, inputs: list[np.ndarray]) -> None:
        if self._share is not None:
            assert self.configuration.share is not None
            self._share.configuration = self.configuration.share
            shared = inputs[self._kernels.counts[0] :]
            self._share.run_planes([np.stack([planes[0] for planes in shared])], [self._kernels.kept])

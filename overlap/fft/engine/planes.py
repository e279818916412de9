"""One worker's part of `Bracket`: from modes of whole planes to modes of their brackets.

The loops between the FFTs would take NumPy twenty passes, which cost as much as the FFTs. Loops and FFTs of
a block run without the GIL, in one call.

M and K are the largest ky and kx in units of their spacing. What the FFTs read and do not write (out of
place) keeps its zeros: the padding of the 2/3 rule is written once.
"""

import numpy as np

from ...compiled import njit
from .execute import call
from .fftw import zeros
from .lines import LineTransform

compiled = njit(fastmath={"contract"})
BEFORE = 2  # FFTs of a pair before its brackets are taken; the others come after


class Planes:
    """Work arrays and FFTW plans for blocks of plane pairs.

    Parameters
    ----------
    pairs : int
        Plane pairs per block.
    modes : (int, int)
        M + 1 and 2 K + 1: ky = 0 ... M, kx = -K ... K.
    spacing : (float, float)
        dky, dkx.
    points : (int, int)
        Size of the real-space grid, ``(ny, nx)``.
    rows : list of slice
        The ky that come together in one piece.
    effort : str
        FFTW's.
    """

    def __init__(self, pairs, modes, spacing, points, rows, effort):
        nky, _ = modes
        ny, nx = points
        self._spacing, self._rows = spacing, rows
        self._modes = zeros((2 * pairs, 2 * nky - 1, nx), complex)  # ky = -M ... M
        self._spectra = zeros((pairs, 2 * nky - 1, nx), complex)  # ky = 0 ... M, -M ... -1
        # Of one pair, which stay in the cache:
        self._columns = zeros((2, ny, nx), complex)
        self._gradients = zeros((2, ny, nx), complex)
        self._brackets = zeros((ny, nx), complex)
        lines = self._gradients[0]  # free again once the brackets are taken

        def planned(source, target, axis, forward):
            plan = LineTransform(source, target, axis, forward, effort, keep=True)
            self._plans.append(plan)
            return [plan.function, plan.plan,
                    *(array.__array_interface__["data"][0] for array in (source, target))]

        ends = [(slice(0, nky), slice(0, nky))]
        if nky > 1:
            ends.append((slice(ny - nky + 1, ny), slice(nky, None)))
        self._plans = []
        gradients = planned(self._columns, self._gradients, 1, False)
        lines_forward = planned(self._brackets, lines, 0, True)
        self._calls = np.array([[
            planned(self._modes[2 * pair:2 * pair + 2], self._columns[:, :2 * nky - 1], 2, False),
            gradients, lines_forward,
            *(planned(lines[here], self._spectra[pair, there], 1, True) for here, there in ends)]
            for pair in range(pairs)], np.int64)

    def load(self, pieces):
        """Take the modes of some planes, at most a block.

        Parameters
        ----------
        pieces : list of ndarray
            ``(planes, rows, nkx)``, one per entry of `rows`.
        """
        for rows, piece in zip(self._rows, pieces):
            if piece.size:
                _spread(piece, rows.start, *self._spacing, self._modes)

    def transform(self, pair):
        """Bring f_x + i f_y of a pair of the planes that were loaded to real space.

        The modes are laid out from the most negative one on, not in FFTW's order: that gives all
        fields the same phase, on which the bracket does not depend.

        Returns
        -------
        ndarray of complex
            ``(2, ny, nx)``; overwritten by the next call.
        """
        _execute(self._calls[pair, :BEFORE])
        return self._gradients

    def brackets(self, advecting):
        """Bring the brackets of all planes that were loaded to Fourier space.

        Parameters
        ----------
        advecting : ndarray of complex
            a_x + i a_y of these planes, C-contiguous ``(planes, ny, nx)``.
        """
        _brackets(self._calls, advecting.reshape(len(advecting), -1),
                  self._gradients.reshape(2, -1), self._brackets.reshape(-1))

    def store(self, pieces):
        """Write the modes of the brackets of the planes, as in `load`."""
        for rows, piece in zip(self._rows, pieces):
            if piece.size:
                _separate(self._spectra, rows.start, 0.5 / self._brackets.size, piece)


@compiled
def _spread(piece, first, dky, dkx, modes):
    """Modes of f_x + i f_y, of both signs of ky, from those of f at ky >= 0.

    Their factor is i (kx + i ky), and f(-k) = conj f(k).
    """
    planes, rows, nkx = piece.shape
    last = modes.shape[1] // 2
    for plane in range(planes):
        for row in range(rows):
            number = first + row
            ky = number * dky
            above, below = modes[plane, last + number], modes[plane, last - number]
            for column in range(nkx):
                kx = (column - nkx // 2) * dkx
                f = piece[plane, row, column]
                x_re, x_im = -kx * f.imag, kx * f.real
                y_re, y_im = ky * f.real, ky * f.imag
                if number:
                    below[nkx - 1 - column] = complex(x_re + y_re, -x_im - y_im)
                above[column] = complex(x_re - y_re, x_im - y_im)


@compiled
def _multiply(advecting, gradients, brackets):
    """a_x f_y - a_y f_x of the first plane, plus i times that of the second one, if there is."""
    if len(advecting) == 1:
        for x in range(len(brackets)):
            a, f = advecting[0, x], gradients[0, x]
            brackets[x] = a.real * f.imag - a.imag * f.real
        return
    for x in range(len(brackets)):
        a, f = advecting[0, x], gradients[0, x]
        b, g = advecting[1, x], gradients[1, x]
        brackets[x] = complex(a.real * f.imag - a.imag * f.real, b.real * g.imag - b.imag * g.real)


@compiled
def _execute(calls):
    """Execute some FFTs: function, plan, source, target."""
    for number in range(len(calls)):
        call(calls[number, 0], calls[number, 1], calls[number, 2], calls[number, 3])


@compiled
def _brackets(calls, advecting, gradients, brackets):
    """All pairs of a block, each from its modes to those of its brackets."""
    planes = len(advecting)
    for pair in range((planes + 1) // 2):
        _execute(calls[pair, :BEFORE])
        _multiply(advecting[2 * pair:min(2 * pair + 2, planes)], gradients, brackets)
        _execute(calls[pair, BEFORE:])


@compiled
def _separate(spectra, first, scale, piece):
    """Modes of b and d from those of c = b + i d, real b and d being planes of a pair.

    2 b_k = c_k + conj c_(-k), 2 d_k = -i (c_k - conj c_(-k)).
    """
    planes, rows, nkx = piece.shape
    lines, nx = spectra.shape[1:]
    most = nkx // 2
    for pair in range((planes + 1) // 2):
        for row in range(rows):
            number = first + row
            here, mirrored = spectra[pair, number], spectra[pair, (lines - number) % lines]
            # Of a single plane, what is written to d is overwritten by b.
            b, d = piece[2 * pair, row], piece[min(2 * pair + 1, planes - 1), row]
            for kx in range(most + 1):
                c, opposite = here[kx], mirrored[(nx - kx) % nx]
                d[most + kx] = complex(scale * (c.imag + opposite.imag),
                                       scale * (opposite.real - c.real))
                b[most + kx] = complex(scale * (c.real + opposite.real),
                                       scale * (c.imag - opposite.imag))
            for kx in range(1, most + 1):
                c, opposite = here[nx - kx], mirrored[kx]
                d[most - kx] = complex(scale * (c.imag + opposite.imag),
                                       scale * (opposite.real - c.real))
                b[most - kx] = complex(scale * (c.real + opposite.real),
                                       scale * (c.imag - opposite.imag))

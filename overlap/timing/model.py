"""How long a pipeline should take: closed forms, and the two numbers they need from a measurement.

Pure functions of plain numbers; nothing here knows MPI, arrays or threads. Notation, as in the
GKV application note on hiding communication with OpenMP (called GKV below):

C   compute time in seconds of all the work, with all N workers and no overlap
T   communication time in seconds of all the work, no overlap
N   workers per rank
S   items in the pipeline (slices, or chunks of several slices), all alike
L   latency in seconds of one message;  W  bandwidth in bytes per second

Fill and drain
--------------
The forms without `slices` are the limit of infinitely many slices. With S of them, two things
stay uncovered, whatever the schedule does in between:

* The network idles while the first slice is computed up to its exchange, and while the last one
  is computed after its exchange: together the compute time of one slice. One slice runs on one
  thread, and C was measured with all of them, so it takes C / ceil(S/N). Hence
  t >= T + C / ceil(S/N).
* At the end of a run bound by computing, at most one exchange (T/S) finds no work to hide behind.
  The workers that idle meanwhile are all N (``poll``) or the N - 1 that are not inside MPI
  (``block``), of which C + T/N already counts T/(N S). Hence t <= C + T/S in both modes, written
  C + T/N + (1 - 1/N) T/S for ``block``.

The larger of the two is used. One slice (S = 1) gives C + T in both modes, as it must. [derived
here; the tests compare it with a small event simulation]
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral

WAITS = ("off", "block", "poll")


# --- checks -------------------------------------------------------------------------------------

def _seconds(name, value):
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite time >= 0 in seconds, got {value!r}")
    return float(value)


def _amount(name, value):
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: expected a finite number >= 0, got {value!r}")
    return float(value)


def _positive(name, value):
    if not value > 0:
        raise ValueError(f"{name}: expected a number > 0, got {value!r}")
    return float(value)


def _count(name, value):
    if not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")
    return int(value)


# --- overlap of one pipeline ----------------------------------------------------------------------

def no_overlap_s(compute_s, communication_s):
    """Time without any overlap, C + T.

    Parameters
    ----------
    compute_s, communication_s : float
        C and T in seconds.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A time is negative or not finite.
    """
    return _seconds("compute_s", compute_s) + _seconds("communication_s", communication_s)


def block_s(compute_s, communication_s, workers, *, slices=None):
    """Time when the communicator spends a core inside the blocking call: max(C + T/N, T).

    During T only N - 1 workers compute; what they leave is done by all N. Valid as C + T/N
    while T <= N C/(N - 1); beyond, there is not enough work and the time is T (GKV; the second
    branch is derived, and the two agree at the boundary).

    Parameters
    ----------
    compute_s, communication_s : float
        C and T in seconds.
    workers : int
        N, the workers of the rank, the communicating one included.
    slices : int, optional
        S; adds pipeline fill and drain:
        max(C + T/N + (1 - 1/N) T/S, T + C / ceil(S/N)). See the module's docstring.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A time is negative or not finite, or a count is not an integer >= 1.
    """
    compute_s = _seconds("compute_s", compute_s)
    communication_s = _seconds("communication_s", communication_s)
    workers = _count("workers", workers)
    computing = compute_s + communication_s / workers
    communicating = communication_s
    if slices is not None:
        slices = _count("slices", slices)
        computing += (1 - 1 / workers) * communication_s / slices
        communicating += compute_s / math.ceil(slices / workers)
    return max(computing, communicating)


def poll_s(compute_s, communication_s, *, slices=None, workers=1):
    """Time when the communicator sleeps while the network works: max(C, T).

    Parameters
    ----------
    compute_s, communication_s : float
        C and T in seconds.
    slices : int, optional
        S; adds pipeline fill and drain: max(C + T/S, T + C / ceil(S/N)). See the module's
        docstring.
    workers : int, optional
        N; matters only with `slices`.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A time is negative or not finite, or a count is not an integer >= 1.
    """
    compute_s = _seconds("compute_s", compute_s)
    communication_s = _seconds("communication_s", communication_s)
    workers = _count("workers", workers)
    if slices is None:
        return max(compute_s, communication_s)
    slices = _count("slices", slices)
    return max(compute_s + communication_s / slices,
               communication_s + compute_s / math.ceil(slices / workers))


def best_speedup(workers):
    """Best possible (C + T)/max(C + T/N, T) over all T/C: 2 - 1/N.

    Reached at `best_speedup_at` (GKV timing model).

    Parameters
    ----------
    workers : int
        N.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        `workers` is not an integer >= 1.
    """
    return 2 - 1 / _count("workers", workers)


def best_speedup_at(compute_s, workers):
    """Communication time at which blocking overlap gains most: T = N C/(N - 1).

    Parameters
    ----------
    compute_s : float
        C in seconds.
    workers : int
        N.

    Returns
    -------
    float
        Seconds; infinity for one thread, which gains nothing at any T.

    Raises
    ------
    ValueError
        The time is negative or not finite, or `workers` is not an integer >= 1.
    """
    compute_s = _seconds("compute_s", compute_s)
    workers = _count("workers", workers)
    return math.inf if workers == 1 else workers * compute_s / (workers - 1)


def hidden(compute_s, communication_s, measured_s):
    """Share of what could be hidden that was: (C + T - t)/min(C, T).

    1 at t = max(C, T), 0 at t = C + T, negative when overlapping made it slower. Above 1, one of
    the three was not measured under the conditions of the others.

    Parameters
    ----------
    compute_s, communication_s, measured_s : float
        C, T and t in seconds.

    Returns
    -------
    float
        NaN when C or T is 0: there was nothing to hide.

    Raises
    ------
    ValueError
        A time is negative or not finite.
    """
    could = min(_seconds("compute_s", compute_s), _seconds("communication_s", communication_s))
    saved = compute_s + communication_s - _seconds("measured_s", measured_s)
    return saved / could if could > 0 else math.nan


# --- all-to-all on one and on two axes of a process grid ------------------------------------------

def alltoall_1d_s(points, P, Q, latency_s, bandwidth_Bps, itemsize=16, *, approximate=False):
    """Time of one all-to-all among all PQ ranks.

    (PQ - 1) (L + b N/((PQ)^2 W)) with N points of b bytes (Takahashi, volumetric parallel 3-D
    FFT, equation 4).

    Parameters
    ----------
    points : int or float
        N, points of the global array.
    P, Q : int
        Process grid.
    latency_s : float
        L in seconds.
    bandwidth_Bps : float
        W in bytes per second.
    itemsize : int, optional
        b, bytes per point.
    approximate : bool, optional
        The form for many ranks instead, PQ L + b N/(PQ W).

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A count, size or time is out of its range.
    """
    points, P, Q, link = _grid(points, P, Q, latency_s, bandwidth_Bps, itemsize)
    ranks = P * Q
    nbytes = itemsize * points
    if approximate:
        return ranks * link.latency_s + nbytes / (ranks * link.bandwidth_Bps)
    return (ranks - 1) * link.time_s(nbytes / ranks**2)


def alltoall_2d_s(points, P, Q, latency_s, bandwidth_Bps, itemsize=16, *, approximate=False):
    """Time of the two all-to-alls of a P x Q decomposition, one along each axis of the grid.

    (P - 1) (L + b N/(P^2 Q W)) + (Q - 1) (L + b N/(P Q^2 W)) (Takahashi, equation 5).

    Parameters
    ----------
    points, P, Q, latency_s, bandwidth_Bps, itemsize
        As in `alltoall_1d_s`.
    approximate : bool, optional
        The form for many ranks instead, (P + Q) L + 2 b N/(PQ W).

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A count, size or time is out of its range.
    """
    points, P, Q, link = _grid(points, P, Q, latency_s, bandwidth_Bps, itemsize)
    nbytes = itemsize * points
    if approximate:
        return (P + Q) * link.latency_s + 2 * nbytes / (P * Q * link.bandwidth_Bps)
    return ((P - 1) * link.time_s(nbytes / (P**2 * Q))
            + (Q - 1) * link.time_s(nbytes / (P * Q**2)))


def crossover_points(P, Q, latency_s, bandwidth_Bps, itemsize=16):
    """Number of points below which two all-to-alls beat one: L W PQ (PQ - P - Q)/b.

    From the approximate forms (Takahashi, equation 7).

    Parameters
    ----------
    P, Q, latency_s, bandwidth_Bps, itemsize
        As in `alltoall_1d_s`.

    Returns
    -------
    float
        Points; 0 or less where one all-to-all always wins (P or Q of 1, or 2 x 2).

    Raises
    ------
    ValueError
        A count, size or time is out of its range.
    """
    _, P, Q, link = _grid(1, P, Q, latency_s, bandwidth_Bps, itemsize)
    return link.latency_s * link.bandwidth_Bps * P * Q * (P * Q - P - Q) / itemsize


def _grid(points, P, Q, latency_s, bandwidth_Bps, itemsize):
    _count("itemsize", itemsize)
    return (_amount("points", points), _count("P", P), _count("Q", Q),
            LatencyBandwidth(latency_s, bandwidth_Bps))


# --- fits from measurements -----------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class LatencyBandwidth:
    """Time of an exchange as a straight line over its size: L + nbytes/W.

    Attributes
    ----------
    latency_s : float
        L in seconds, >= 0.
    bandwidth_Bps : float
        W in bytes per second, > 0; infinity where time does not grow with size.

    Raises
    ------
    ValueError
        A value is out of its range.
    """

    latency_s: float
    bandwidth_Bps: float

    def __post_init__(self):
        _seconds("latency_s", self.latency_s)
        _positive("bandwidth_Bps", self.bandwidth_Bps)

    def time_s(self, nbytes):
        """Seconds that one exchange of `nbytes` bytes takes."""
        return self.latency_s + nbytes / self.bandwidth_Bps


def fit_message_time(nbytes, seconds):
    """Fit latency and bandwidth to measured exchanges.

    Minimises the sum of ((L + n/W - t)/t)^2 over L >= 0, 1/W >= 0: relative errors, or the largest
    messages alone would decide the latency.

    Parameters
    ----------
    nbytes : sequence of int
        Size of each exchange in bytes; at least two different ones. The sizes fix what W means:
        give the bytes that the rank sends, and W is the rate per rank.
    seconds : sequence of float
        Measured time of each exchange, all > 0.

    Returns
    -------
    LatencyBandwidth
        `bandwidth_Bps` is infinity when the times do not grow with the size.

    Raises
    ------
    ValueError
        The sequences differ in length, or hold fewer than two sizes or a time that is not > 0.
    """
    nbytes, seconds = [float(n) for n in nbytes], [float(t) for t in seconds]
    if len(nbytes) != len(seconds):
        raise ValueError(f"seconds: expected one time per size, {len(nbytes)}, got {len(seconds)}")
    for n, t in zip(nbytes, seconds):
        if not (math.isfinite(n) and n >= 0):
            raise ValueError(f"nbytes: expected finite sizes >= 0, got {n!r}")
        if not (math.isfinite(t) and t > 0):
            raise ValueError(f"seconds: expected finite times > 0, got {t!r}")
    if len(set(nbytes)) < 2:
        raise ValueError("nbytes: expected at least two different sizes, got "
                         f"{sorted(set(nbytes))}")
    # In relative terms every measurement reads 1 = L a + (1/W) b with a = 1/t and b = n/t.
    a = [1 / t for t in seconds]
    b = [n / t for n, t in zip(nbytes, seconds)]
    saa, sab, sbb = (math.fsum(x * y for x, y in zip(u, v)) for u, v in ((a, a), (a, b), (b, b)))
    sa, sb = math.fsum(a), math.fsum(b)
    determinant = saa * sbb - sab * sab
    latency_s = (sa * sbb - sb * sab) / determinant
    s_per_byte = (sb * saa - sa * sab) / determinant
    # The problem is convex: with one unknown negative, the minimum has it at 0.
    if latency_s < 0:
        latency_s, s_per_byte = 0.0, sb / sbb
    elif s_per_byte <= 0:
        latency_s, s_per_byte = sa / saa, 0.0
    return LatencyBandwidth(latency_s, 1 / s_per_byte if s_per_byte > 0 else math.inf)


# --- how many slices per message ------------------------------------------------------------------

def pipeline_s(compute_s, nbytes, link, *, slices, chunk=1, workers=1, wait="poll",
               message_overhead_s=0.0, depth=None):
    """Predicted time of a pipeline that sends `chunk` slices per message.

    With M = ceil(slices/chunk) messages and o seconds of overhead each:

    * T = M L + nbytes/W.
    * One thread computes a chunk, in c = N C/M + o; so all take C' = c ceil(M/N). Few large chunks
      leave workers idle.
    * t is `no_overlap_s`, `block_s` or `poll_s` of C' and T with M items, fill and drain included.
    * With D slots (`depth`), each slot holds a chunk for at least its computing and its exchange,
      so t >= (M/D) (c + T/M).

    Parameters
    ----------
    compute_s : float
        C in seconds: all slices, with all workers, without overlap.
    nbytes : int or float
        Bytes of all exchanges together, counted as in the fit that gave `link`.
    link : LatencyBandwidth
        Time of one exchange over its size.
    slices : int
        Slices in all.
    chunk : int, optional
        Slices per message; the last message may hold fewer.
    workers : int, optional
        N.
    wait : {"off", "block", "poll"}, optional
        How the communicator waits; "off" is no overlap at all.
    message_overhead_s : float, optional
        Seconds of a core that one message costs beyond its latency (awaits, request handling).
    depth : int, optional
        Slots, that is, chunks in flight; as many as there are chunks when not given.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        An argument is out of its range.
    """
    compute_s = _seconds("compute_s", compute_s)
    nbytes = _amount("nbytes", nbytes)
    slices, chunk = _count("slices", slices), _count("chunk", chunk)
    workers = _count("workers", workers)
    overhead_s = _seconds("message_overhead_s", message_overhead_s)
    if wait not in WAITS:
        raise ValueError(f"wait: expected one of {', '.join(WAITS)}, got {wait!r}")
    messages = math.ceil(slices / chunk)
    communication_s = messages * link.latency_s + nbytes / link.bandwidth_Bps
    chunk_s = workers * compute_s / messages + overhead_s
    compute_s = chunk_s * math.ceil(messages / workers)
    if wait == "off":
        return no_overlap_s(compute_s, communication_s)
    if wait == "block":
        wall_s = block_s(compute_s, communication_s, workers, slices=messages)
    else:
        wall_s = poll_s(compute_s, communication_s, slices=messages, workers=workers)
    if depth is not None:
        slots = min(_count("depth", depth), messages)
        wall_s = max(wall_s, (messages * chunk_s + communication_s) / slots)
    return wall_s


def best_chunk(compute_s, nbytes, link, *, slices, candidates=None, **options):
    """Slices per message with the smallest `pipeline_s`.

    Parameters
    ----------
    compute_s, nbytes, link, slices
        As in `pipeline_s`.
    candidates : iterable of int, optional
        Chunks to choose from; by default 1, 2, 4, ... up to `slices`, and `slices`.
    **options
        `workers`, `wait`, `message_overhead_s`, `depth` of `pipeline_s`.

    Returns
    -------
    int
        The smallest of the candidates with the smallest time: small slots, less memory.

    Raises
    ------
    ValueError
        An argument is out of its range, or there is no candidate.
    """
    slices = _count("slices", slices)
    if candidates is None:
        candidates = default_chunks(slices)
    elif not isinstance(candidates, Iterable):
        raise ValueError(f"candidates: expected an iterable of integers, got {candidates!r}")
    candidates = sorted({_count("candidates", chunk) for chunk in candidates})
    if not candidates:
        raise ValueError("candidates: expected at least one chunk, got none")
    return min(candidates, key=lambda chunk: pipeline_s(
        compute_s, nbytes, link, slices=slices, chunk=chunk, **options))


def default_chunks(slices):
    """Chunks worth trying for `slices` slices: the powers of two below it, and itself.

    Parameters
    ----------
    slices : int

    Returns
    -------
    list of int
        Ascending.

    Raises
    ------
    ValueError
        `slices` is not an integer >= 1.
    """
    slices = _count("slices", slices)
    return [2**k for k in range(slices.bit_length()) if 2**k < slices] + [slices]

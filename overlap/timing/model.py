"""Closed forms for the time of a pipeline.

Pure functions of plain numbers; nothing here knows MPI, arrays or threads. Notation, as in the
GKV application note on hiding communication with OpenMP (called GKV below):

C   compute time in seconds of all the work, with all N workers and no overlap
T   communication time in seconds of all the work, no overlap
K   core time in seconds that communicating takes beside computing
N   workers per rank
S   items in the pipeline (slices, or chunks of several slices), all alike
L   latency in seconds of one message;  W  bandwidth in bytes per second

Fill and drain -------------- The forms without `slices` are the limit of infinitely many slices. With S slices two
parts are not hidden, whatever the schedule in between:

* The network idles while the first slice is computed up to its exchange, and while the last one
  is computed after its exchange: together the compute time of one slice. One slice runs on one
  thread, and C was measured with all of them, so it takes C / ceil(S/N). Hence
  t >= T + C / ceil(S/N).
* At the end of a run bound by computing, at most one exchange (T/S) has no computing behind which it could be hidden.
  Meanwhile all N workers are idle (``poll``), or the N - 1 workers that are not inside MPI (``block``), of which C +
  T/N already counts T/(N S). Hence t <= C + T/S in both modes, written C + T/N + (1 - 1/N) T/S for ``block``.

The larger bound is used. One slice (S = 1) gives C + T in both modes, as it must. [derived here; the tests compare it
with a small event simulation]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..checks import amount, count, seconds
from .messages import LatencyBandwidth


def no_overlap_s(compute_s: float, communication_s: float) -> float:
    """Return the time without any overlap, C + T.

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

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.no_overlap_s(0.25, 0.5)
    0.75
    """
    return seconds("compute_s", compute_s) + seconds("communication_s", communication_s)


def block_s(compute_s: float, communication_s: float, workers: int, *, slices: int | None = None) -> float:
    """Return the time when the communicator spends a core inside the blocking call: max(C + T/N, T).

    During T only N - 1 workers compute; all N workers do the rest. The time is C + T/N while T <= N C/(N - 1); beyond,
    there is not enough work and the time is T (GKV; the second branch is derived, and both agree at the boundary).

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

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.block_s(0.25, 0.5, workers=4)
    0.5
    """
    compute_s = seconds("compute_s", compute_s)
    communication_s = seconds("communication_s", communication_s)
    workers = count("workers", workers)
    computing = compute_s + communication_s / workers
    communicating = communication_s
    if slices is not None:
        slices = count("slices", slices)
        computing += (1 - 1 / workers) * communication_s / slices
        communicating += compute_s / math.ceil(slices / workers)
    return max(computing, communicating)


def poll_s(
    compute_s: float, communication_s: float, *, slices: int | None = None, workers: int = 1, core_s: float = 0.0
) -> float:
    """Return the time when the communicator sleeps while the network works: max(C, T), or max(C + K/N, T).

    K is the core time that communicating takes even so: that of the communicator, and that of the kernel if it moves
    the data (TCP). It is added to the N C core-seconds of computing on N cores. If the communicator never sleeps, K = T
    and the result is that of `block_s`.

    Parameters
    ----------
    compute_s, communication_s : float
        C and T in seconds.
    slices : int, optional
        S; adds pipeline fill and drain: max(C + K/N + T/S, T + C / ceil(S/N)). See the module's
        docstring.
    workers : int, optional
        N; matters only with `slices` or `core_s`.
    core_s : float, optional
        K in seconds of a core of this rank, for all the work.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        A time is negative or not finite, or a count is not an integer >= 1.

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.poll_s(0.25, 0.5), model.poll_s(0.25, 0.5, slices=8)
    (0.5, 0.53125)
    >>> model.poll_s(0.25, 0.25, workers=2, core_s=0.125)  # the kernel works half as long as the link
    0.3125
    """
    compute_s = seconds("compute_s", compute_s)
    communication_s = seconds("communication_s", communication_s)
    workers = count("workers", workers)
    computing = compute_s + seconds("core_s", core_s) / workers
    if slices is None:
        return max(computing, communication_s)
    slices = count("slices", slices)
    return max(computing + communication_s / slices, communication_s + compute_s / math.ceil(slices / workers))


def uneven_compute_s(compute_s: float, speeds: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return C for ranks that differ in speed: the time of the rank that computes longest.

    With p ranks of speeds P_i and shares w_i / sum(w), in units of the C of even shares on ranks of speed 1, it is
    max_i p w_i / (P_i sum(w)): 1 / min(P) with even shares, p / sum(P) with weights in proportion to the speeds, and
    never less.

    Parameters
    ----------
    compute_s : float
        C in seconds of even shares on ranks that all have speed 1.
    speeds : sequence of float
        One per rank.
    weights : sequence of float, optional
        The shares are proportional to these; by default to the speeds.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        The time is negative or not finite, or speeds and weights are not equally many positive numbers.

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.uneven_compute_s(1.0, (1.0, 0.5)), model.uneven_compute_s(1.0, (1.0, 0.5), (1, 1))
    (1.3333333333333333, 2.0)
    """
    compute_s = seconds("compute_s", compute_s)
    weights = speeds if weights is None else weights
    if not speeds or len(speeds) != len(weights) or not all(0 < each < math.inf for each in (*speeds, *weights)):
        raise ValueError(f"expected equally many positive speeds and weights, received {speeds!r} and {weights!r}")
    whole = math.fsum(weights)
    return compute_s * len(speeds) * max(weight / (speed * whole) for speed, weight in zip(speeds, weights))


def best_speedup(workers: int) -> float:
    """Return the best possible (C + T)/max(C + T/N, T) over all T/C: 2 - 1/N.

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

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.best_speedup(4)
    1.75
    """
    return 2 - 1 / count("workers", workers)


def best_speedup_at(compute_s: float, workers: int) -> float:
    """Return the communication time at which blocking overlap gains most: T = N C/(N - 1).

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

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.best_speedup_at(0.75, 4)
    1.0
    """
    compute_s = seconds("compute_s", compute_s)
    workers = count("workers", workers)
    return math.inf if workers == 1 else workers * compute_s / (workers - 1)


def hidden(compute_s: float, communication_s: float, measured_s: float) -> float:
    """Return the hidden share of what could be hidden: (C + T - t)/min(C, T).

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

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.hidden(0.25, 0.5, 0.5)
    1.0
    """
    could = min(seconds("compute_s", compute_s), seconds("communication_s", communication_s))
    saved = compute_s + communication_s - seconds("measured_s", measured_s)
    return saved / could if could > 0 else math.nan


def hidden_share(compute_s: float, communication_s: float, measured_s: float) -> float:
    """Return `hidden` as a share from 0 to 1, for times that were measured while a program ran.

    Where C or T is small, the noise of the larger one can be many times what could be hidden.

    Parameters
    ----------
    compute_s, communication_s, measured_s : float
        C, T and t in seconds.

    Returns
    -------
    float
        NaN if there was nothing to hide, or if the times miss the range by more than a quarter of what could be hidden:
        they were not measured under the same conditions, and do not tell the share.

    Raises
    ------
    ValueError
        A time is negative or not finite.

    Examples
    --------
    >>> from overlap.timing import model
    >>> model.hidden_share(0.25, 0.5, 0.49), model.hidden_share(0.25, 0.001, 0.2)
    (1.0, nan)
    """
    share = hidden(compute_s, communication_s, measured_s)
    return min(max(share, 0.0), 1.0) if -0.25 <= share <= 1.25 else math.nan


def pipeline_s(
    compute_s: float,
    nbytes: float,
    link: LatencyBandwidth,
    *,
    slices: int,
    chunk: int = 1,
    workers: int = 1,
    wait: str = "poll",
    message_overhead_s: float = 0.0,
    depth: int | None = None,
) -> float:
    """Predict the time of a pipeline that sends `chunk` slices per message.

    With M = ceil(slices/chunk) messages and o seconds of overhead each:

    * T = M L + nbytes/W.
    * One thread computes a chunk in c = N C/M + o, so all chunks take C' = c ceil(M/N). Few large chunks leave workers
      idle.
    * t is `no_overlap_s`, `block_s` or `poll_s` of C' and T with M items, fill and drain included.
    * With D slots (`depth`), each chunk occupies its slot during its computing and its exchange at least, so t >= (M/D)
      (c + T/M).

    Parameters
    ----------
    compute_s : float
        C in seconds: all slices, with all workers, without overlap.
    nbytes : int or float
        Bytes of all exchanges together, counted as in the fit of `link`.
    link : LatencyBandwidth
        Time of one exchange over its size.
    slices : int
        Slices in all.
    chunk : int, optional
        Slices per message; the last message may hold fewer.
    workers : int, optional
        N.
    wait : {"off", "block", "poll"}, optional
        How the communicator waits; "off": no overlap.
    message_overhead_s : float, optional
        Seconds of a core that one message costs beyond its latency (awaits, request handling).
    depth : int, optional
        Slots, that is, chunks in flight; by default as many as there are chunks.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    ValueError
        An argument is out of its range.

    Examples
    --------
    >>> from overlap.timing import model
    >>> from overlap.timing.messages import LatencyBandwidth
    >>> link = LatencyBandwidth(latency_s=1e-5, bandwidth_Bps=1e9)
    >>> model.pipeline_s(0.25, 5e8, link, slices=64, chunk=8) < model.pipeline_s(0.25, 5e8, link, slices=64, wait="off")
    True
    """
    compute_s = seconds("compute_s", compute_s)
    nbytes = amount("nbytes", nbytes)
    slices, chunk = count("slices", slices), count("chunk", chunk)
    workers = count("workers", workers)
    overhead_s = seconds("message_overhead_s", message_overhead_s)
    messages = math.ceil(slices / chunk)
    communication_s = messages * link.latency_s + nbytes / link.bandwidth_Bps
    chunk_s = workers * compute_s / messages + overhead_s
    compute_s = chunk_s * math.ceil(messages / workers)
    if wait == "off":
        return no_overlap_s(compute_s, communication_s)
    if wait == "block":
        wall_s = block_s(compute_s, communication_s, workers, slices=messages)
    elif wait == "poll":
        wall_s = poll_s(compute_s, communication_s, slices=messages, workers=workers)
    else:
        raise ValueError(f"wait: expected one of off, block, poll, received {wait!r}")
    if depth is not None:
        slots = min(count("depth", depth), messages)
        wall_s = max(wall_s, (messages * chunk_s + communication_s) / slots)
    return wall_s

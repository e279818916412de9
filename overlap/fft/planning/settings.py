"""How a transform runs, and what planning and tuning measured of it: plain records."""

from dataclasses import dataclass

from ...runtime import POLLS_PER_EXCHANGE


@dataclass(frozen=True)
class Settings:
    """How a transform runs.

    Attributes
    ----------
    wait : {"off", "block", "poll"}
    depth : int
        Slots: chunks in flight.
    chunk : int
        Slices per message, at most.
    in_flight : int
        Exchanges in flight at once, with ``"poll"``.
    polls : int
        Polls per exchange, with ``"poll"``; see `Runtime.pipelined`.
    effort : str, optional
        FFTW's planning effort; see `FFT2`.
    rows : int, optional
        Rows per block of the sweep along x; found by timing where None.
    late : float
        Of `FFT3`: the share of the last field that is exchanged in the order in which it can be
        completed. This needs work memory, and leaves little to do after the last exchange.
    """

    wait: str
    depth: int
    chunk: int
    in_flight: int
    polls: int = POLLS_PER_EXCHANGE
    effort: str | None = None
    rows: int | None = None
    late: float = 0.0

    def __str__(self):
        words = [self.wait, f"depth {self.depth}", f"{self.chunk} slice(s) per message"]
        if self.wait == "poll":
            words.append(f"{self.in_flight} in flight")
            if self.polls != POLLS_PER_EXCHANGE:
                words.append(f"{self.polls} polls per exchange")
        if self.late:
            words.append(f"{100 * self.late:.0f} % late")
        if self.effort is not None:
            words.append(f"effort {self.effort}")
        return ", ".join(words)


@dataclass(frozen=True)
class Trial:
    """One candidate that was measured.

    Attributes
    ----------
    settings : Settings
    seconds_per_slice : float
        Measured (median).
    model_s : float or None
        As the model had it, per slice, where it was asked.
    """

    settings: Settings
    seconds_per_slice: float
    model_s: float | None = None

    def __str__(self):
        model = "" if self.model_s is None else f", model {self.model_s * 1e6:.0f}"
        return f"  {self.settings}: measured {self.seconds_per_slice * 1e6:.0f} us per slice{model}"


@dataclass(frozen=True)
class Tuned:
    """What tuning gained.

    Attributes
    ----------
    default : str
        The settings that planning alone chose.
    gain : float
        Their time over that of the settings found, the median of the same interleaved rounds; 1
        where nothing better was found.
    tried : int
        Settings that were measured.
    """

    default: str
    gain: float
    tried: int

    def __str__(self):
        return f"tuned: {self.gain:.2f}x the speed of {self.default}; {self.tried} settings tried"

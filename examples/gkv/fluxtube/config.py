"""The configuration of a run: sections of a TOML file, each a frozen record that is checked when it is made.

Units as in GKV: lengths R along the field and rho_ti across it, velocity v_ti, time R/v_ti.
"""

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf


class ConfigError(ValueError):
    """Raised for a configuration that cannot be run; the message names the key."""


def number(default, least=-inf, most=inf, kind=float, above=None):
    """Declare a key whose value is a number from `least` to `most`, or larger than `above`."""
    return field(default=default, metadata={"kind": kind, "least": least, "most": most, "above": above})


def count(default, least=0, most=inf):
    return number(default, least, most, int)


def choice(default, *allowed):
    return field(default=default, metadata={"allowed": allowed})


@dataclass(frozen=True, kw_only=True)
class Plasma:
    """Gradients, geometry and collisions.

    Attributes
    ----------
    R_LT, R_Ln : float
        R over the gradient lengths of temperature and density.
    q, shear, eps : float
        Safety factor, magnetic shear, inverse aspect ratio.
    tau : float
        T_i / T_e.
    nu : float
        Lenard-Bernstein collision frequency in v_ti / R.
    """

    R_LT: float = number(6.92)
    R_Ln: float = number(2.22)
    q: float = number(1.4, above=0)
    shear: float = number(0.8, above=0)
    eps: float = number(0.18, 0, 0.9)
    tau: float = number(1.0, 0)
    nu: float = number(3.2e-3, 0)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Points, modes and their spacing.

    Attributes
    ----------
    nx, ny : int
        Largest mode numbers: kx = -nx ... nx, ky = 0 ... ny, in steps.
    nz, nv : int
        Points along the field and in the parallel velocity, both even.
    nmu : int
        Intervals of the perpendicular velocity, nmu + 1 points.
    turns : int
        Nt: z runs from -pi Nt to pi Nt.
    ky_min : float
    m_j : int
        kx_min = 2 pi shear ky_min / m_j, so that the field line's ends connect modes.
    kx_min : float
        Given instead of m_j if nothing connects, with ny = 0 or nx = 0; 0: computed from m_j.
    vmax : float
        Largest parallel and perpendicular velocity.
    points : list of int
        Real-space points in y and x of the nonlinear term; if empty, the fastest numbers that the 2/3 rule allows.
    """

    nx: int = count(0)
    ny: int = count(12)
    nz: int = count(96, 8)
    nv: int = count(48, 8)
    nmu: int = count(15, 3)
    turns: int = count(3, 1)
    ky_min: float = number(0.05, above=0)
    m_j: int = count(1, 1)
    kx_min: float = number(0.0, 0)
    vmax: float = number(4.5, above=0)
    points: tuple = ()


@dataclass(frozen=True, kw_only=True)
class Time:
    """Time stepping.

    Attributes
    ----------
    end : float
        R / v_ti.
    dt_max : float
    courant : float
        Time step over the stability limit of the Runge-Kutta scheme.
    dissipation : float
        Coefficient of the fourth difference in z.
    sample_every, checkpoint_every : int
        Steps.
    """

    end: float = number(30.0, above=0)
    dt_max: float = number(0.03, above=0)
    courant: float = number(0.8, 0.01, 1.0)
    dissipation: float = number(0.1, 0)
    sample_every: int = count(10, 1)
    checkpoint_every: int = count(500, 1)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The initial distribution.

    Attributes
    ----------
    form : {"ballooning", "zonal", "noise"}
        0.01 F (1 + v + z)^2 exp(-z^2 / (0.2 pi)^2) at kx = 0; F at the smallest kx > 0; the first
        with random phases at all kx, and ky > 0.
    amplitude : float
        The initial f / F.
    seed : int
    """

    form: str = choice("ballooning", "ballooning", "zonal", "noise")
    amplitude: float = number(0.01, above=0)
    seed: int = count(1)


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Distribution of the work.

    Attributes
    ----------
    ky, z, v, mu : int
        Ranks along each axis; 0: the program chooses.
    workers : int
        Threads per rank.
    wait : {"auto", "off", "block", "poll"}
    depth : int
        Slices in flight.
    nonlinear : {"off", "planes", "slab"}
        No nonlinear term; GKV's exchange of whole planes (`overlap.Bracket`); or `overlap.FFT2.pointwise`.
    """

    ky: int = count(0)
    z: int = count(0)
    v: int = count(0)
    mu: int = count(0)
    workers: int = count(1, 1)
    wait: str = choice("auto", "auto", "off", "block", "poll")
    depth: int = count(8, 1)
    nonlinear: str = choice("off", "off", "planes", "slab")


@dataclass(frozen=True, kw_only=True)
class Config:
    """All sections.

    Raises
    ------
    ConfigError
        If keys contradict each other.
    """

    plasma: Plasma = Plasma()
    grid: Grid = Grid()
    time: Time = Time()
    start: Start = Start()
    parallel: Parallel = Parallel()

    def __post_init__(self):
        for section in fields(self):
            _check(section.name, getattr(self, section.name))
        grid = self.grid
        for name in ("nz", "nv"):
            if getattr(grid, name) % 2:
                raise ConfigError(f"grid.{name}: expected an even number, received {getattr(grid, name)}")
        if grid.kx_min and grid.nx and grid.ny:
            raise ConfigError(f"grid.kx_min: expected 0 (chosen by m_j) with several kx and ky, received {grid.kx_min}")
        if self.start.form == "zonal" and not grid.nx:
            raise ConfigError("grid.nx: expected at least 1 for start.form zonal, received 0")
        if self.parallel.nonlinear != "off" and not (grid.nx and grid.ny):
            raise ConfigError(
                f"parallel.nonlinear: expected off without several kx and ky, received {self.parallel.nonlinear}"
            )
        points = self.grid.points
        least = 3 * grid.ny + 1, 3 * grid.nx + 1
        if points and not (
            len(points) == 2
            and all(isinstance(n, int) for n in points)
            and points[0] >= least[0]
            and points[1] >= least[1]
        ):
            raise ConfigError(f"grid.points: expected two integers, at least {list(least)}, received {list(points)}")

    def with_values(self, values):
        """Return this configuration with some values replaced.

        Parameters
        ----------
        values : dict
            Sections by name, each a dict of keys, as in a TOML file.
        """
        sections = {section.name: getattr(self, section.name) for section in fields(self)}
        for name, keys in values.items():
            if name not in sections:
                raise ConfigError(f"{name}: expected one of the sections {', '.join(sections)}")
            if not isinstance(keys, dict):
                raise ConfigError(f"{name}: expected a section [{name}], received {keys!r}")
            known = [key.name for key in fields(sections[name])]
            for key in keys:
                if key not in known:
                    raise ConfigError(f"{name}.{key}: expected one of {', '.join(known)}")
            _check(name, sections[name], keys)
            sections[name] = replace(
                sections[name],
                **{key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()},
            )
        return Config(**sections)

    def as_dict(self):
        """Return plain values by section, for `with_values`."""
        return asdict(self)


def read(path, config):
    """Return `config` with the values of a TOML file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or a key is unknown or out of its range.
    """
    try:
        with open(path, "rb") as file:
            return config.with_values(tomllib.load(file))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a TOML file, {error}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check(section, record, values=None):
    """Check the values of a section, or values that are to replace some of them."""
    for key in fields(record):
        if values is not None and key.name not in values:
            continue
        value = getattr(record, key.name) if values is None else values[key.name]
        name, rule = f"{section}.{key.name}", key.metadata
        if "allowed" in rule:
            if value not in rule["allowed"]:
                raise ConfigError(f"{name}: expected one of {', '.join(rule['allowed'])}, received {value!r}")
        elif "kind" in rule:
            kinds = (int,) if rule["kind"] is int else (int, float)
            above = -inf if rule["above"] is None else rule["above"]
            if (
                isinstance(value, bool)
                or not isinstance(value, kinds)
                or not abs(value) < inf
                or not rule["least"] <= value <= rule["most"]
                or not value > above
            ):
                raise ConfigError(f"{name}: expected {_range(rule)}, received {value!r}")
        elif not isinstance(value, (list, tuple)):
            raise ConfigError(f"{name}: expected a list, received {value!r}")


def _range(rule):
    words = "an integer" if rule["kind"] is int else "a number"
    if rule["above"] is not None:
        words += f" larger than {rule['above']}"
    elif rule["least"] > -inf and rule["most"] < inf:
        words += f" from {rule['least']} to {rule['most']}"
    elif rule["least"] > -inf:
        words += f" of at least {rule['least']}"
    return words


CASES = {
    # GKV's linear benchmark of the Cyclone base case.
    "cyclone": Config(),
    # Residual and geodesic acoustic mode of a zonal flow.
    "zonal": Config(
        plasma=Plasma(R_LT=0.0, R_Ln=0.0, nu=0.0),
        grid=Grid(nx=1, ny=0, nz=32, nv=64, nmu=24, turns=1, kx_min=0.05),
        time=Time(end=56.0, dt_max=0.02, sample_every=5),
        start=Start(form="zonal"),
    ),
    # GKV's sample of nonlinear ITG turbulence, on a smaller grid.
    "turbulence": Config(
        plasma=Plasma(R_LT=7.0, R_Ln=2.0),
        grid=Grid(nx=20, ny=10, nz=24, nv=24, nmu=7, turns=1, m_j=4),
        time=Time(end=120.0, dt_max=0.05),
        start=Start(form="noise", amplitude=0.2),
        parallel=Parallel(nonlinear="planes"),
    ),
}

"""Shaped links: runs a command as MPI ranks on several simulated hosts of one machine.

Between ranks on one machine an all-to-all is a memcpy, and there is nothing to hide. Here each
host gets a link of a chosen rate, so that MPI has to communicate for real.

`run` starts one process (`_make`) in new namespaces for network, mounts, processes and, unless it is root already,
users. It is the parent of all processes in the namespaces:

    run ── _make ── _init, process 1 of the new namespaces: makes the links, starts the launcher
           (waits)    └─ mpiexec ─ one proxy per host ─ one `_enter` per rank ─ the command

In the namespaces is a bridge, and per host a network namespace with one veth pair to the bridge,
with a token bucket (`tbf`) where packets leave the host. From three hosts on there is a second
bucket where they leave the bridge, so that several senders cannot exceed one receiver's link.
The launcher and its proxies talk over the loopback device, so the links carry no control traffic.
`_enter` moves one rank into its host, names the host `h0`, `h1`, ..., pins the rank to a core
and becomes the command. Ranks of one host share memory, as on a cluster.

Nothing is removed by name. Process 1 dies with its parents, whatever ends them. The kernel then kills the remaining
processes of the namespaces, and drops interfaces, mounts and shared memory.

Traps.

* While a rank computes, its bucket fills: up to `burst` bytes then travel for free and look like
  hidden communication. The burst must be small against one message, yet hold one packet as the
  kernel hands it over (64 KiB), or the kernel cuts every packet up, and wakes for each piece:
  with bursts of 24 KiB at 4 Gbit/s that took the whole core, and left nothing to hide behind.
* A network namespace with a name is deleted asynchronously, and its interfaces live on. So namespaces have no names
  here.
* `netem` is missing from many kernels; `tbf` is in most.
* TCP must not limit the rate itself. BBR, the default on some systems, paces long messages to 85 % of the link, and
  after an idle time TCP starts slowly. Reno, which every kernel has, does neither on a link that drops nothing, if the
  slow start is switched off.
* Open MPI's launcher talks to its ranks over the network, which cannot reach them in their namespaces. MPICH's launcher
  gives each rank an open pipe, which works from any namespace.
* The kernel sends the parent-death signal when the *thread* that made the process ends: call
  `run` from a thread that stays until `run` returns (it does by itself).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import json
import math
import os
import re
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

if __name__ != "__main__":  # the processes in the namespaces run this file alone, outside of the package
    from ..errors import LinksUnavailable
    from . import signals, slow

_NEWNS, _NEWUTS, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000,
    0x04000000,
    0x10000000,
    0x20000000,
    0x40000000,
)  # linux/sched.h
_MS_REC_PRIVATE, _MS_BIND = 0x4000 | 0x40000, 0x1000  # linux/mount.h
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

BURST = 66 * 1024  # bytes that an idle link lets through at once, by default: one packet
_UNITS = {"": 1, "b": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_DEADLINE_PASSED = 124  # the same as timeout(1)
_MAX_RATE = 8 * (2**32 - 1)  # tbf counts bytes per second in 32 bits
_QUEUE_BYTES = 4 << 20  # length of a link's queue, beyond which packets are dropped
_FABRIC = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}
_LAUNCHER_VARIABLES = ("PMI", "HYDRA_", "HYDI_", "MPI_LOCAL")  # set if this process is part of an MPI job


# ---- the public side: runs in the caller's process ------------------------------------------


def parse_rate(text: object) -> float:
    """Read a link's rate.

    Parameters
    ----------
    text : str
        A positive number of bits per second, ``"2e9"``, or with a unit, ``"1.5gbit"``: one of
        ``bit``, ``kbit``, ``mbit``, ``gbit`` (powers of 1000); anything else is a ValueError.

    Returns
    -------
    float
        Bits per second.

    Raises
    ------
    ValueError
        The text is not a rate.

    Examples
    --------
    >>> from overlap.tools import links
    >>> links.parse_rate("1.5gbit")
    1500000000.0
    """
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(|bit|kbit|mbit|gbit)", str(text).strip().lower())
    try:
        rate = float(match[1]) * _UNITS[match[2][:1]] if match else 0.0
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise ValueError(
            f"expected a rate above 0 in bits per second, such as '2gbit', '500mbit' or '2e9'; received {text!r}"
        )
    return rate


@functools.cache
def unavailable_reason() -> str | None:
    """Return why shaped links cannot be made here, or None.

    It makes a pair of linked hosts in a child process and discards them. The answer is kept: None if links work.

    Returns
    -------
    str or None

    Examples
    --------
    >>> from overlap.tools import links
    >>> reason = links.unavailable_reason()
    >>> reason is None or len(reason) > 0
    True
    """
    try:
        run([])
    except LinksUnavailable as error:
        return str(error)
    return None


def run(
    command: Sequence[str],
    *,
    hosts: int = 2,
    rate: str = "2gbit",
    burst: int = BURST,
    mtu: int = 9000,
    ranks: int | None = None,
    cpus: Sequence[int] | None = None,
    shares: Mapping[int, float] | None = None,
    deadline_s: float | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[bytes] | int | None = None,
) -> int:
    """Run a command as MPI ranks (MPICH, over TCP) on hosts joined by shaped links.

    The command reads no standard input. A signal that ends this process, SIGKILL included, ends the command too. If an
    exception is raised, KeyboardInterrupt included, the command ends before the exception leaves `run`. SIGTERM and
    SIGHUP raise one, too (`signals.ending_by_exception`).

    Parameters
    ----------
    command : list of str
        Program and arguments, the same for every rank. An empty list only tries the links.
    hosts : int
        Number of hosts.
    rate : str
        Rate of each host's link, in each direction (see `parse_rate`).
    burst : int
        Bytes that an idle link lets through at once before the rate holds.
    mtu : int
        Bytes per packet on the links.
    ranks : int, optional
        A multiple of `hosts`; neighbouring ranks share a host. One rank per host by default.
    cpus : sequence of int, optional
        Rank i is pinned to ``cpus[i % len(cpus)]``; an empty sequence pins nothing. By default,
        all the cores this process may use.
    shares : dict, optional
        The share that each slow rank keeps of its core's time: competitors take the rest (`slow`). A
        line on standard error tells what was measured of each.
    deadline_s : float, optional
        Seconds after which everything is ended; no limit by default.
    env : dict, optional
        Environment variables to set, in addition to this process's own and to those that choose MPI's network.
    stdout : file or file descriptor, optional
        Standard output of all ranks; by default that of this process.

    Returns
    -------
    int
        The launcher's exit status, which is the command's; 124 if the deadline has passed.

    Raises
    ------
    overlap.errors.LinksUnavailable
        Namespaces or links cannot be made here.
    ValueError
        An argument is out of its range.

    Examples
    --------
    >>> from overlap.tools import links
    >>> if links.unavailable_reason() is None:
    ...     status = links.run(["true"], rate="4gbit")
    """
    bits = parse_rate(rate)
    ranks = hosts if ranks is None else ranks
    cpus = sorted(os.sched_getaffinity(0)) if cpus is None else list(cpus)
    for name, value, low, high in (
        ("rate", bits, 8, _MAX_RATE),
        ("hosts", hosts, 1, 250),
        ("mtu", mtu, 1280, 65535),
        ("burst", burst, mtu + 64, 2**30),
    ):
        if not low <= value <= high:
            raise ValueError(f"expected {name} between {low} and {high}, received {value}")
    if ranks < 1 or ranks % hosts:
        raise ValueError(f"expected ranks to be a multiple of hosts = {hosts}, received {ranks}")
    if problem := slow.problem_of(shares or {}, ranks, len(cpus)):
        raise ValueError(problem)
    mpiexec = Path(sys.executable).with_name("mpiexec.hydra")
    if not mpiexec.exists():
        raise LinksUnavailable(f"MPICH's launcher is missing: expected {mpiexec} (pip install mpich)")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER_VARIABLES)}
    environ |= _FABRIC | signals.UCX_SETTINGS | {"OVERLAP_LINK": f"{bits / 1e9:g}gbit"} | dict(env or {})
    with signals.ending_by_exception():
        return _run(
            dict(
                command=list(command),
                hosts=hosts,
                rate=bits,
                burst=burst,
                mtu=mtu,
                ranks=ranks,
                cpus=cpus,
                slow=slow.__file__,
                shares=sorted((shares or {}).items()),
                mpiexec=str(mpiexec),
            ),
            environ,
            stdout,
            deadline_s,
        )


def _run(
    spec: dict[str, Any], environ: Mapping[str, str], stdout: int | IO[Any] | None, deadline_s: float | None
) -> int:
    """Start process `make`, wait for its links and for its end."""
    status_r, status_w = os.pipe()
    spec |= dict(status_fd=status_w, parent=os.getpid(), uid=os.geteuid(), gid=os.getegid())
    try:
        outer = subprocess.Popen(  # in a session of its own, so that Ctrl-C reaches this process only
            [sys.executable, "-P", __file__, "make", json.dumps(spec)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            pass_fds=[status_w],
            start_new_session=True,
        )
    finally:
        os.close(status_w)
        status = open(status_r, encoding="utf-8", errors="replace")  # noqa: SIM115 (below)
    try:
        with status:
            reason = status.read()  # returns when the links have been made or making them has failed
        if reason:
            raise LinksUnavailable(f"shaped links cannot be made here: {reason}")
        return outer.wait(deadline_s)
    except subprocess.TimeoutExpired:
        return _DEADLINE_PASSED
    finally:
        outer.terminate()
        outer.wait()


# ---- process `make`: leaves the namespaces, waits ---------------------------------------------


def _call(name: str, *args: Any) -> None:
    """Call a function of the C library; if it fails, raise an OSError that names it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _make(spec: dict[str, Any]) -> int:
    """Unshare, fork process 1 of the new namespaces, and wait for it."""
    everything = _NEWNS | _NEWPID | _NEWNET
    try:
        _call("unshare", everything)  # root needs no user namespace, and keeps its files
    except PermissionError:
        _call("unshare", everything | _NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {spec['uid']} 1")
        Path("/proc/self/gid_map").write_text(f"0 {spec['gid']} 1")
    # Set after the change of user, which may clear it.
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != spec["parent"]:
        return 1  # the parent died before the signal was requested
    alive_r, alive_w = os.pipe()
    init = os.fork()
    if init == 0:
        os.close(alive_w)
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if select.select([alive_r], [], [], 0)[0]:
            os._exit(1)  # the same
        os._exit(_reporting(_init, spec))
    os.close(spec["status_fd"])
    # Killing process 1 kills all the others; it ends only after them. With WNOWAIT its number is not given to another
    # process while the handler may still use it.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGKILL))
    os.waitid(os.P_PID, init, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) & 0xFF


def _reporting(step: Callable[[dict[str, Any]], int], spec: dict[str, Any]) -> int:
    """Return the step's exit status; if it raises, report the reason to `run` through the status pipe."""
    try:
        return step(spec)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        restricted = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        if spec["uid"] != 0 and restricted.exists() and restricted.read_text().strip() == "1":
            reason += f" (AppArmor restricts user namespaces: {restricted} is 1)"
        if getattr(error, "errno", None) == errno.ENOSPC:
            reason += " (a limit in /proc/sys/user is 0 or reached)"
        os.write(spec["status_fd"], reason.encode())
        return 1


# ---- process 1 of the namespaces: makes the links, starts the ranks ---------------------------


def _init(spec: dict[str, Any]) -> int:
    _mount(spec["hosts"])
    me = os.readlink("/proc/self")  # not 1 if /proc could not be mounted
    inside = dict(
        cpus=spec["cpus"],
        ranks_per_host=spec["ranks"] // spec["hosts"],
        networks=[f"/proc/{me}/fd/{fd}" for fd in _make_links(spec)],
    )
    os.close(spec["status_fd"])
    if not spec["command"]:
        return 0
    _slow_down(spec)
    per_host = str(inside["ranks_per_host"])
    hosts = ",".join(f"h{host}:{per_host}" for host in range(spec["hosts"]))
    status = subprocess.call(
        [
            spec["mpiexec"],
            "-rmk",
            "user",
            "-launcher",
            "fork",
            "-localhost",
            "127.0.0.1",
            "-hosts",
            hosts,
            "-ppn",
            per_host,
            "-n",
            str(spec["ranks"]),
            sys.executable,
            "-IS",
            __file__,
            "enter",
            json.dumps(inside),
            *spec["command"],
        ]
    )
    return status if status >= 0 else 128 - status


def _slow_down(spec: dict[str, Any]) -> None:
    """Start competitors on the cores of slow ranks, which end with this process, and report the shares that they
    leave."""
    if spec["shares"]:
        slow = runpy.run_path(spec["slow"])
        shares = dict(spec["shares"])
        print(
            *slow["slow_down"]({rank: spec["cpus"][rank] for rank in shares}, shares),
            sep="\n",
            file=sys.stderr,
            flush=True,
        )


def _address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _mount(hosts: int) -> None:
    """Give the new namespaces their own /proc, /dev/shm and /etc/hosts."""
    _call("mount", None, b"/", None, _MS_REC_PRIVATE, None)
    _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
    names = Path("/dev/shm/hosts")
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{_address(host)} h{host}\n" for host in range(hosts)))
    for args in ((str(names).encode(), b"/etc/hosts", None, _MS_BIND, None), (b"proc", b"/proc", b"proc", 0, None)):
        with suppress(OSError):  # a container may refuse; /proc then shows the outer process numbers
            _call("mount", *args)
    names.unlink()


def _set_tcp() -> None:
    """Give TCP in this network the same settings on every machine, if /proc/sys can be written."""
    settings = Path("/proc/sys/net/ipv4")
    try:
        (settings / "tcp_congestion_control").write_text("reno")
        (settings / "tcp_slow_start_after_idle").write_text("0")
    except OSError:
        pass


def _make_links(spec: dict[str, Any]) -> list[int]:
    """Make bridge, hosts and links; return one file descriptor per host's network."""
    try:
        from pyroute2 import IPRoute
    except ImportError as error:
        if error.name != "pyroute2":  # pyroute2 is installed, but lacks a package
            raise ImportError(f"pyroute2 cannot be imported: {error}") from None
        raise ImportError(f"pyroute2 is missing ({error}); pip install pyroute2") from None

    def shape(ip: Any, index: int) -> None:
        try:
            ip.tc(
                "add",
                "tbf",
                index,
                rate=round(spec["rate"] / 8),
                burst=spec["burst"],
                limit=spec["burst"] + _QUEUE_BYTES,
            )
        except Exception as error:
            raise OSError(f"the kernel refused a token bucket (tbf): {error}") from None

    def up(ip: Any, name: str, **settings: Any) -> int:
        index = ip.link_lookup(ifname=name)[0]
        ip.link("set", index=index, state="up", **settings)
        return index

    networks = []
    bridge_network = os.open("/proc/self/ns/net", os.O_RDONLY)
    with IPRoute() as ip:
        up(ip, "lo")
        ip.link("add", ifname="bridge", kind="bridge")
        bridge = up(ip, "bridge", mtu=spec["mtu"])
    for host in range(spec["hosts"]):
        _call("unshare", _NEWNET)
        networks.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        with IPRoute() as ip:
            up(ip, "lo")
            _set_tcp()
            ip.link(
                "add",
                ifname="eth0",
                kind="veth",
                mtu=spec["mtu"],
                peer={"ifname": f"port{host}", "mtu": spec["mtu"], "net_ns_fd": bridge_network},
            )
            link = up(ip, "eth0")
            ip.addr("add", index=link, address=_address(host), prefixlen=24)
            shape(ip, link)
        _call("setns", bridge_network, _NEWNET)
        with IPRoute() as ip:
            port = up(ip, f"port{host}", master=bridge)
            if spec["hosts"] > 2:
                shape(ip, port)
    return networks


# ---- one rank --------------------------------------------------------------------------------


def _enter(inside: dict[str, Any], command: list[str]) -> None:
    """Move into this rank's host and core, and become the command."""
    rank = int(os.environ["PMI_RANK"])
    host = rank // inside["ranks_per_host"]
    _call("setns", os.open(inside["networks"][host], os.O_RDONLY), _NEWNET)
    _call("unshare", _NEWUTS)
    name = f"h{host}".encode()
    _call("sethostname", name, len(name))
    if inside["cpus"]:
        os.sched_setaffinity(0, [inside["cpus"][rank % len(inside["cpus"])]])
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores this signal, and exec would keep it ignored
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)  # the statuses of a shell


if __name__ == "__main__":
    if sys.argv[1] == "make":
        sys.exit(_reporting(_make, json.loads(sys.argv[2])))
    _enter(json.loads(sys.argv[2]), sys.argv[3:])

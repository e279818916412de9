"""What a lost rank costs, and what it costs to be prepared: from the kill to the next step, and saves in a time loop.

    python bench/losses.py --launcher "mpiexec --with-ft ulfm" [--ranks 3] [--rounds N] [--json FILE]
    python bench/losses.py --link 2gbit [--rounds N] [--json FILE]

Needs Open MPI 5; with ``--link``, where only saves are timed, MPICH.

* ``recovery_s``: 64 planes of 512 x 512 are transformed back and forth, step by step, and a rank kills itself in the
  middle of a step; seconds until the ranks that are left have completed the next step, with runtime, plan and fields
  made anew on them, and kept anew. Median over jobs. ``notice_s``: until the last of them has raised `RankLost`.
* ``loop_s``, ``saving_s``: steps of the Navier-Stokes example, 8 planes of 512 x 512, without saves, and with one every
  tenth step that travels while the others compute, in turns; ``cost`` is the median of the rounds' quotients less 1.
  ``save_s``: one save that is waited for; ``start_s``: the part of a save for which the loop waits.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep

EVERY, STEPS = 10, 20  # steps between two saves, and of a loop
SHAPE = 64, 512, 512


# ---- on the ranks --------------------------------------------------------------------------------


def step(plan, spectrum):
    """Go to real space and back."""
    spectrum[...] = plan.forward(plan.backward(spectrum))


def started(comm, shape, on_loss):
    """A plan on a runtime, a field, and what keeps it."""
    import overlap

    runtime = overlap.Runtime(comm, on_loss=on_loss)
    plan = overlap.FFT2(runtime, shape, "f8", norm="forward", settings={"effort": "estimate", "wait": "off"})
    spectrum = plan.spectrum.empty()
    spectrum[...] = 1.0
    return plan, spectrum, overlap.Protected(spectrum)


def kill(comm, folder):
    """Lose the last rank in a step; every other one writes when it has noticed, and when the next step was over."""
    import overlap

    plan, spectrum, protected = started(comm, SHAPE, "raise")
    for _ in range(3):
        step(plan, spectrum)
    protected.save(0)
    began = perf_counter()
    step(plan, spectrum)
    step_s = perf_counter() - began
    comm.Barrier()

    def die():
        sleep(1.5 * step_s)
        Path(folder, "killed").write_text(repr(monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    if comm.rank == comm.size - 1:
        threading.Thread(target=die, daemon=True).start()
    try:
        while True:
            step(plan, spectrum)
    except overlap.RankLost as loss:
        noticed = monotonic()
        runtime = loss.survivors()
        plan = plan.on(runtime)
        _, (spectrum,) = protected.restore(runtime, like=[plan.spectrum])
        protected = overlap.Protected(spectrum, copies=min(1, runtime.comm.size - 1))
        protected.save(0)
        step(plan, spectrum)
        Path(folder, f"rank{runtime.coordinator.rank}").write_text(json.dumps([noticed, monotonic(), step_s]))
        protected.close()
        plan.close()
        runtime.close()


def saves(comm, rounds, folder):
    """Time loops with and without saves in turns, and saves alone."""
    import numpy as np

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from navier_stokes_2d import NavierStokes, random_vorticity

    plan, spectrum, protected = started(comm, (8, *SHAPE[1:]), None)
    flow = NavierStokes(plan, 1e-4)
    spectrum[...] = random_vorticity(flow, plan, np.full(8, 6.0))

    def loop(saving):
        for number in range(STEPS):
            if saving and number % EVERY == 0:
                began = perf_counter()
                protected.start(number)
                found["start_s"].append(perf_counter() - began)
            spectrum[...] = flow.step(spectrum, 1e-3)

    def timed(call, *given):
        comm.Barrier()
        began = perf_counter()
        call(*given)
        return max(comm.allgather(perf_counter() - began))

    found = {"loop_s": [], "saving_s": [], "save_s": [], "start_s": []}
    for number in range(rounds + 1):
        for name, call, given in (("loop_s", loop, False), ("saving_s", loop, True), ("save_s", protected.save, 0)):
            value = timed(call, given)
            if number:
                found[name].append(value)
    if comm.rank == 0:
        Path(folder, "found").write_text(json.dumps(found))
    protected.close()
    plan.close()


def on_ranks(options):
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    if options.part == "kill":
        kill(MPI.COMM_WORLD, options.folder)
    else:
        saves(MPI.COMM_WORLD, options.rounds, options.folder)


# ---- here ----------------------------------------------------------------------------------------


def job(options, part, ranks):
    """Run one job; its folder's files."""
    from overlap.tools import launch

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, os.path.abspath(__file__)]
        command += ["--part", part, "--folder", folder, "--rounds", str(options.rounds)]
        if options.link:
            launch.run_ranks(command, ranks=ranks, link=options.link, deadline_s=300)
        else:
            command = [*shlex.split(options.launcher), "-n", str(ranks), *command]
            subprocess.run(command, check=part != "kill", capture_output=part == "kill", timeout=300)
        return {path.name: json.loads(path.read_text()) for path in Path(folder).iterdir()}


def recovery(options):
    """Kill a rank, job after job; the record, or None."""
    recoveries, notices, steps = [], [], []
    for _ in range(options.rounds):
        found = job(options, "kill", options.ranks)
        killed = found.pop("killed")
        if len(found) != options.ranks - 1:
            print(f"a job went wrong: {len(found)} of {options.ranks - 1} ranks went on", file=sys.stderr)
            return None
        recoveries.append(max(ended for _, ended, _ in found.values()) - killed)
        notices.append(max(noticed for noticed, _, _ in found.values()) - killed)
        steps.append(max(step_s for *_, step_s in found.values()))
    return {
        "case": f"a step back and forth, {options.ranks} ranks, one killed",
        "recovery_s": median(recoveries),
        "slowest_recovery_s": max(recoveries),
        "notice_s": median(notices),
        "step_s": median(steps),
    }


def cost(options):
    """Time loops with and without saves; the record."""
    found = job(options, "saves", 2)["found"]
    times = {name: median(values) for name, values in found.items()}
    return {
        "case": f"Navier-Stokes, 2 ranks, {STEPS} steps, a save every {EVERY}, {options.link or 'shared memory'}",
        **times,
        "cost": median(saving / loop - 1 for saving, loop in zip(found["saving_s"], found["loop_s"])),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launcher", default="mpiexec --with-ft ulfm")
    parser.add_argument("--link", metavar="RATE")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        on_ranks(options)
        return 0
    records = [cost(options)]
    if not options.link:
        record = recovery(options)
        if record is None:
            return 1
        records.insert(0, record)
    for one in records:
        print(", ".join(f"{name} {value:.4f}" if isinstance(value, float) else value for name, value in one.items()))
    if options.json:
        options.json.write_text(json.dumps({"cases": records, "rounds": options.rounds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

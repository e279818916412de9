"""Runs the C + OpenMP yardstick over a few thread and chunk counts, and prints its best.

    python bench/reference/scan.py                                         # 2 ranks in shared memory
    python bench/reference/scan.py --link 2gbit --slices 64 --shape 512 512

All cases run in one job with interleaved rounds. On links the control is the case of one thread and
no overlap: what it seems to hide is tokens saved up by the link's bucket, and should stay below 0.1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]
from build import CannotBuild, build


def scan(
    *,
    link=None,
    ranks=2,
    workload="fft2",
    slices=64,
    shape=(512, 512),
    threads=(1, 2),
    per_step=(1, 2, 4),
    message="both",
    rounds=5,
    planner="patient",
    deadline_s=600,
):
    """Time `gkv_fft2` over all combinations of `threads`, `per_step` and `message`.

    Parameters
    ----------
    link : str, optional
        Rate of a shaped link between the ranks, such as ``"2gbit"``; shared memory by default.
    ranks : int
        One core each.
    workload : {"fft2", "operation"}
        The bare forward transform, or four inverse transforms, a product, one forward transform.
    slices, shape
        How many slices of how many points ``(ny, nx)``.
    threads, per_step : sequence of int
        Threads of a rank, which share its core; slices per step of the pipeline.
    message : {"slice", "step", "both"}
        What travels at once.

    Returns
    -------
    dict
        The program's report: ``C_s``, ``T_s``, ``off_s``, ``overlap_s``, ``best``, ``cases``,
        ``max_rel_error``; here also ``link``, ``hidden`` and ``control_hidden``.

    Raises
    ------
    CannotBuild
        If the program cannot be built here.
    RuntimeError
        If the run fails.
    """
    command = [
        str(build()),
        "--json",
        "--workload",
        workload,
        "--slices",
        str(slices),
        "--ny",
        str(shape[0]),
        "--nx",
        str(shape[1]),
        "--threads",
        ",".join(map(str, threads)),
        "--per-step",
        ",".join(map(str, per_step)),
        "--message",
        message,
        "--rounds",
        str(rounds),
        "--planner",
        planner,
    ]
    with tempfile.TemporaryFile("w+") as out:
        if link is None:
            mpiexec = Path(sys.executable).parent / "mpiexec"
            status = subprocess.run(
                [str(mpiexec), "-n", str(ranks), "-bind-to", "core", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                timeout=deadline_s,
            ).returncode
        else:
            from overlap.tools import links

            status = links.run(command, hosts=ranks, rate=link, stdout=out, deadline_s=deadline_s)
        out.seek(0)
        text = out.read()
    if status:
        raise RuntimeError(f"gkv_fft2 ended with status {status}:\n{text}")
    result = json.loads(text[text.index("{") :])
    C, T = result["C_s"], result["T_s"]
    result["link"] = link or "shared memory"
    result["hidden"] = (C + T - result["overlap_s"]) / min(C, T)
    control = [c["median_s"] for c in result["cases"] if (c["mode"], c["threads"], c["per_step"]) == ("off", 1, 1)]
    result["control_hidden"] = (C + T - control[0]) / min(C, T) if control else None
    return result


def show(result):
    """Print a report as a table."""
    ny, nx = result["shape"]
    print(
        f"{result['workload']}, {result['slices']} x {ny} x {nx}, {result['ranks']} ranks, "
        f"{result['link']}; max_rel_error {result['max_rel_error']:.1e}"
    )
    for case in result["cases"]:
        print(
            f"  {case['mode']:9} {case['threads']} threads, {case['per_step']:3} per step, one message per "
            f"{case['message']:5}  {1e3 * case['median_s']:8.2f} ms"
        )
    best = result["best"]
    print(
        f"  C {1e3 * result['C_s']:.2f} ms, T {1e3 * result['T_s']:.2f} ms, off {1e3 * result['off_s']:.2f} ms, "
        f"best overlap {1e3 * result['overlap_s']:.2f} ms ({best['threads']} threads, {best['per_step']} per step, "
        f"a message per {best['message']}), hidden {result['hidden']:.2f}"
    )
    if result["control_hidden"] is not None:
        print(f"  control (one thread, no overlap): hidden {result['control_hidden']:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--link", help="rate of a shaped link, such as 2gbit; shared memory without")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workload", choices=["fft2", "operation"], default="fft2")
    parser.add_argument("--slices", type=int, default=64)
    parser.add_argument("--shape", type=int, nargs=2, default=(512, 512), metavar=("NY", "NX"))
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--per-step", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--message", choices=["slice", "step", "both"], default="both")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--planner", choices=["measure", "patient"], default="patient")
    parser.add_argument("--json", action="store_true", help="the report as one line of JSON")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    if max(options["threads"]) < 2:
        parser.error("the technique needs at least 2 threads")
    try:
        result = scan(**options)
    except (CannotBuild, RuntimeError) as error:
        sys.exit(str(error))
    print(json.dumps(result)) if as_json else show(result)


if __name__ == "__main__":
    main()

"""`overlap tune`: the fastest settings for one workload, kept in a tuning file.

`tune_case` runs on the ranks, `tune` starts them, shows progress and prints what was tried.
"""

import os

from .commands import at_hand, need, refuse_links_under_mpi, run_ranks
from .jobs import JOBS

SHOWN = 8               # of the settings tried, the fastest
DEFAULT_FILE = "overlap-tuning.json"
TUNABLE = "fft2", "operation"       # an FFT3 chooses by measuring alone


def tune_case(comm, case, budget_s, path, progress):
    """Tune a case's plan. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
    case : Case
    budget_s : float
    path : str
        The tuning file.
    progress : callable
        As of `FFT2.tune`.

    Returns
    -------
    dict
        Name of each transform to its ``default``, ``chosen``, ``gain``, ``tried`` and ``trials``, a
        list of (settings, seconds per slice, the model's), fastest first.
    """
    from ...fft import FFT2
    with FFT2(comm, case.global_shape, case.dtype, workers=case.threads, tuning=path) as plan:
        transform = JOBS[case.workload](case, plan).transform(plan)
        plan.tune(budget_s, progress)
        transforms = {each.name: each for each in (plan.forward, plan.backward, transform)}
        return {name: {
            "default": each.tuned.default, "chosen": str(each.settings), "gain": each.tuned.gain,
            "tried": each.tuned.tried,
            "trials": [(str(trial.settings), trial.seconds_per_slice, trial.model_s)
                       for trial in each.trials[:SHOWN]]} for name, each in transforms.items()}


def tune(case, *, budget_s, path=None, ranks, link=None, burst=None, deadline_s=None):
    """Tune a case on ranks of its own, or on those mpiexec started; print what was tried.

    Raises
    ------
    CommandError, LaunchError, LinksUnavailable
    """
    need("rich")
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    refuse_links_under_mpi(link)
    path = os.path.abspath(path or os.environ.get("OVERLAP_TUNING") or DEFAULT_FILE)
    events = {}
    with Progress(TextColumn("tuning"), BarColumn(), TimeElapsedColumn(),
                  TextColumn("{task.description}"), console=_console(stderr=True)) as bar:
        task = bar.add_task("starting", total=budget_s)

        def on_event(event):
            events.update(event)
            if "progress" in event:
                what, done, total = event["progress"]
                bar.update(task, description=what, completed=done, total=total)

        run_ranks({"task": "tune", "budget_s": budget_s, "path": path, **case.as_dict()},
                  ranks=at_hand(ranks), on_event=on_event, threads=case.threads, link=link, burst=burst,
                  deadline_s=deadline_s)
        bar.update(task, description="done", completed=budget_s, total=budget_s)
    if "tuned" in events:
        _print(events["tuned"], path)


def _console(**options):
    from rich.console import Console
    console = Console(**options)
    return console if console.is_terminal else Console(width=110, **options)


def _print(transforms, path):
    from rich.table import Table
    console = _console()
    for name, record in transforms.items():
        table = Table(title=name, title_justify="left", box=None)
        table.add_column("settings tried, fastest first")
        table.add_column("measured", justify="right")
        table.add_column("model", justify="right")
        for settings, seconds, model_s in record["trials"]:
            chosen = settings == record["chosen"]
            table.add_row(settings, f"{1e6 * seconds:.1f} us/slice", f"{1e6 * model_s:.1f}",
                          style="bold" if chosen else "")
        if record["trials"]:
            console.print(table)
        console.print(f"{name}: {record['chosen']}: {record['gain']:.2f}x the speed of the default "
                      f"({record['default']}); {record['tried']} settings tried\n", markup=False)
    console.print(f"written: {path}; plans use it with tuning={path!r}, or with OVERLAP_TUNING set",
                  markup=False, soft_wrap=True)

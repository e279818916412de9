"""`overlap cache`: shows or removes the settings that plans have kept for later plans."""

from __future__ import annotations

import argparse

from ..fft.planning import tuning_file
from ..files import CACHE_VARIABLE, user_folder
from .options import adder


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add ``show`` and ``clear`` to the parser of `overlap cache`."""
    add = adder(parser.add_subparsers(title="commands", required=True, metavar="COMMAND"))
    add("show", _show, "list the settings that are kept, by plan", "overlap cache show", one_rank=True)
    add("clear", _clear, "remove all settings that are kept", "overlap cache clear", one_rank=True)


def _show(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    place = user_folder()
    if place is None:
        print(f"nothing is kept: {CACHE_VARIABLE} is empty, or there is no home")
        return
    print(place)
    for path, entry in tuning_file.cached():
        if entry is None:
            print(f"{path.name}: damaged, counts as missing")
            continue
        plan, machine = entry["plan"], entry["machine"]
        what = " ".join(str(plan[name]) for name in ("kind", "shape", "dtype", "axes") if name in plan)
        print(f"{what}: {machine['hosts']} host(s), {machine['ranks_per_host']} rank(s) each, {machine['mpi']}")
        for name, values in entry["transforms"].items():
            print(f"  {name}: {tuning_file.settings_of(values)[0]}")
        print(f"  wisdom: {len(entry['wisdom'].splitlines())} lines")


def _clear(given: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    print(f"{tuning_file.clear()} file(s) removed")

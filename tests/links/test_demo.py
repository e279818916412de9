"""`overlap demo` and `overlap links` on real shaped links; the demo as a newcomer has it, from the wheel in a bare
environment.
"""

import json
import os
import shlex
import shutil
import sys
import venv
from importlib import metadata
from pathlib import Path

import processes
import pytest
from commands import run
from marks import exhaustive
from packaging.requirements import Requirement

from overlap.runtime.trace import KINDS
from overlap.tools import links, timeline

pytestmark = pytest.mark.skipif(links.unavailable_reason() is not None, reason=str(links.unavailable_reason()))


def overlap(*arguments):
    return run(sys.executable, "-m", "overlap", *arguments)


def link_requirements(distribution, extras, site):
    """Link what a distribution requires, and what that requires, from this environment into a folder of packages."""
    for text in distribution.requires or ():
        required = Requirement(text)
        if required.marker and not any(required.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if required.name == distribution.name:  # extras of its own
            link_requirements(distribution, required.extras, site)
            continue
        found = metadata.distribution(required.name)
        for file in found.files:
            if file.parts[0] == "..":  # commands and libraries, beside the packages
                link(Path(os.path.normpath(site / file)), found.locate_file(file))
            elif file.parts[0] != "__pycache__":
                link(site / file.parts[0], found.locate_file(file.parts[0]))
        link_requirements(found, required.extras, site)


def link(place, target):
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.symlink_to(os.path.abspath(target))


@pytest.fixture(params=["here", exhaustive("wheel")])
def command(request):
    """The command `overlap` of this environment, or of one that a newcomer has."""
    return overlap if request.param == "here" else request.getfixturevalue("installed")


@pytest.fixture
def installed(tmp_path_factory):
    """The command `overlap` of a wheel built here, in an environment with what the wheel requires alone."""
    source, built, environment = map(tmp_path_factory.mktemp, ("source", "built", "environment"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(processes.REPOSITORY / name, source)
    shutil.copytree(processes.REPOSITORY / "overlap", source / "overlap", ignore=shutil.ignore_patterns("__pycache__"))
    python = [sys.executable, "-m"]
    done = run(*python, "build", "--wheel", "--no-isolation", "--outdir", built, source)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = built.iterdir()
    venv.create(environment, symlinks=True)
    install = shlex.split("install --quiet --no-index --no-deps")
    done = run(*python, "pip", "--python", environment / "bin" / "python", *install, wheel)
    assert done.returncode == 0, done.stderr
    (site,) = environment.glob("lib/python*/site-packages")
    (wheel,) = metadata.distributions(name="overlap-mpi", path=[str(site)])
    link_requirements(wheel, ["demo"], site)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def command(*arguments):
        return run(environment / "bin" / "overlap", *arguments, cwd=source.parent, env=own)

    shutil.rmtree(source)
    scripts = command("scale", "template", "slurm")  # is a file of the package that is no module
    assert scripts.returncode == 0 and scripts.stdout.startswith("#!"), scripts.stderr
    return command


def test_demo_shows_links_and_writes_three_files(tmp_path, command):
    done = command("demo", "--rates", "2gbit", "--slices", 6, "--shape", 256, 256, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "timeline.json", "timeline.png"]
    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    shared, linked = report["cases"]
    assert (shared["link"], shared["hosts"], shared["control_hidden"]) == ("shm", 1, None)
    assert (linked["link"], linked["hosts"]) == ("2gbit", 2)
    assert isinstance(linked["control_hidden"], float)
    nbytes = 6 * 5 * 64 * 129 * 16  # leave each rank
    # The links are real: no run is faster than they allow.
    assert linked["T_s"] > 0.9 * 8 * nbytes / 2e9
    assert max(record["max_rel_error"] for record in report["cases"]) < 1e-11
    for place in ("shared memory", "links of 2gbit"):
        assert any(line.startswith(place) for line in done.stdout.splitlines())
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    spans = timeline.read_chrome(tmp_path / "timeline.json")
    assert {span.rank for span in spans} == {0, 1} and {span.kind for span in spans} == set(KINDS)


def test_links_runs_a_command_on_hosts_of_their_own(tmp_path):
    program = "import os, socket, sys; os.mkdir(os.path.join(sys.argv[1], socket.gethostname()))"
    given = shlex.split("links --hosts 2 --rate 1gbit --deadline 60 --")
    # Folders: the launcher may mix what two commands print at the same time.
    done = overlap(*given, sys.executable, "-c", program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"h0", "h1"}


def test_links_status_is_the_commands():
    assert overlap("links", "--", "sh", "-c", "exit 3").returncode == 3


def test_bench_inside_of_links_measures_its_control(tmp_path):
    path = tmp_path / "report.json"
    bench = shlex.split("-m overlap bench fft2 --slices 8 --shape 64 64 --rounds 2 --json")
    done = overlap("links", "--rate", "2gbit", "--", sys.executable, *bench, path)
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(path.read_text())["cases"]
    assert record["hosts"] == 2 and record["control_ok"] is not None


def test_scale_run_gives_each_rank_a_host_of_its_own(tmp_path):
    path = tmp_path / "scale.json"
    given = shlex.split(
        "scale run fft2 --slices 6 --shape 128 128 --rounds 2 --modes auto --link 2gbit --ranks 1 2 --json"
    )
    done = overlap(*given, path)
    assert done.returncode == 0, done.stderr
    alone, both = json.loads(path.read_text())["cases"]
    assert (alone["hosts"], alone["control_hidden"]) == (1, None)
    assert both["hosts"] == 2 and isinstance(both["control_hidden"], float)
    assert [place["host"] for place in both["binding"]] == ["h0", "h1"]
    nbytes = 6 * 64 * 64 * 16  # leave each rank
    # No less than the link allows, whatever else the machine does; one rank alone sends nothing, but may be held up.
    assert both["T_s"] > 0.5 * 8 * nbytes / 2e9

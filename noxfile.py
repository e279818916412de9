"""What a change must pass, a session each: `nox` runs all but the exhaustive tests, `nox -l` lists the sessions."""

import shutil
from pathlib import Path

import nox

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ("lint", "types", "tests", "docs", "build")
nox.options.error_on_missing_interpreters = False


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff and its formatter, codespell, shellcheck, and checks of TOML, YAML and JSON, on all files."""
    session.install("pre-commit")
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    session.install("-e", ".[test]")
    session.run("mypy")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the default tests, or those that the arguments after `--` name."""
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session
def exhaustive(session: nox.Session) -> None:
    """Run all tests, for an hour or so; before a release."""
    session.install("-e", ".[test]")
    session.run("pytest", "-m", "not peer and not physics", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; every warning is an error."""
    session.install("-e", ".[docs]")
    session.run("python", "-m", "sphinx", "-W", "--keep-going", "docs", "site")


@nox.session
def build(session: nox.Session) -> None:
    """Build the source archive and from it the wheel; install each alone, where a demo checks results."""
    session.install("build", "twine")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build")
    archives = [path.resolve() for path in Path("dist").iterdir()]
    session.run("twine", "check", "--strict", *map(str, archives))
    session.chdir(session.create_tmp())
    for archive in archives:
        session.install("--force-reinstall", "--no-deps", str(archive))
        session.install(f"{archive}[demo]")
        session.run("overlap", "--version")
        session.run("overlap", "demo", "--rates")

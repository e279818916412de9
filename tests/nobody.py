"""An interpreter of a user without privileges, who may not read root's home, where this one may lie."""

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import processes

NOBODY = "65534"


@functools.cache
def _environment():
    """A virtual environment that any user may run, with MPICH's launcher; kept until this process ends."""
    python = shutil.which("python{}.{}".format(*sys.version_info), path="/usr/bin:/usr/local/bin")
    if python is None:
        raise FileNotFoundError(f"no Python {sys.version_info[0]}.{sys.version_info[1]} that every user may run")
    folder = tempfile.TemporaryDirectory(prefix="overlap-nobody-")
    os.chmod(folder.name, 0o755)
    subprocess.run([python, "-m", "venv", "--without-pip", folder.name], check=True, stdin=subprocess.DEVNULL)
    for program in Path(sys.executable).parent.glob("*hydra*"):
        Path(folder.name, "bin", program.name).symlink_to(program)
    return folder


@functools.cache
def interpreter():
    """Command and environment of Python without privileges, with the packages of this one.

    Raises
    ------
    OSError
        If there is none of this version, or that user cannot read the packages.
    """
    if os.getuid():
        return [sys.executable], {}
    path = os.pathsep.join([str(processes.REPOSITORY), sysconfig.get_path("purelib")])
    command = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", f"{_environment().name}/bin/python"]
    environ = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
    done = subprocess.run(
        [*command, "-c", "import overlap"],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise OSError(f"a user without privileges cannot import overlap here: {done.stderr[-1000:]}")
    return command, environ

"""Coverage as the project has it measured does not change whether a program ends."""

import sys

import commands
import processes

ENDING = """
import sys, threading
import coverage

def nothing():
    pass

sys.setswitchinterval(1e-6)
coverage.Coverage(config_file=sys.argv[1], data_file=None).start()
for _ in range(100):
    threads = [threading.Thread(target=nothing) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        nothing()
"""


def test_threads_that_end_at_one_moment():
    with commands.process(sys.executable, "-c", ENDING, processes.REPOSITORY / "pyproject.toml") as program:
        _, err = program.communicate(timeout=60)
    assert program.returncode == 0, err

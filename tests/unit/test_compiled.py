"""The cache of compiled functions: where nothing can be written, among ranks, after changes of the source."""

import os
import subprocess
import sys
import textwrap

import pytest
from marks import exhaustive

MODULE = """
from overlap.compiled import njit
{imports}

@njit
def twice(x):
    return {body}
"""
REPORT = """
import sys
import outer
print([outer.twice(eval(text)) for text in sys.argv[1:]], sum(outer.twice.stats.cache_hits.values()))
"""


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "2 * x")
    return tmp_path


def write(folder, body, imports="", name="outer"):
    (folder / f"{name}.py").write_text(textwrap.dedent(MODULE.format(body=body, imports=imports)))


def start(folder, *arguments, code=REPORT, **env):
    environ = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environ | env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
    )


def run(folder, *arguments, **env):
    """What the function returned for each argument, and how many signatures came from files."""
    return ended(start(folder, *arguments, **env))


def ended(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and not err, err
    values, _, hits = out.rstrip().rpartition(" ")
    return eval(values), int(hits)


def code_files(folder):
    return sorted(folder.rglob("*.nbc"))


def test_without_compilation_there_is_one_clear_error(folder):
    """numba's switch for debugging turns off what the library is made of."""
    process = start(folder, code="import overlap.compiled", NUMBA_DISABLE_JIT="1")
    assert "ImportError: expected numba to compile, received NUMBA_DISABLE_JIT=1" in process.communicate(timeout=60)[1]


def test_code_is_kept_beside_the_source(folder):
    assert run(folder, "3", "0.5") == ([6, 1.0], 0)
    assert len(code_files(folder / "__pycache__")) == 2
    assert run(folder, "3", "0.5", "4") == ([6, 1.0, 8], 2)


def test_a_read_only_installation_uses_the_folder_of_the_user(folder):
    (folder / "__pycache__").write_text("nothing can be made in here, by no user")
    cache = folder / "cache"
    for hits in (0, 1):
        assert run(folder, "3", XDG_CACHE_HOME=str(cache), PYTHONDONTWRITEBYTECODE="1") == ([6], hits)
    assert len(code_files(cache)) == 1


def test_without_any_folder_code_is_compiled_in_memory(folder):
    (folder / "__pycache__").write_text("")
    for _ in range(2):
        assert run(folder, "3", XDG_CACHE_HOME="/dev/null/no", HOME="/dev/null/no", PYTHONDONTWRITEBYTECODE="1") == (
            [6],
            0,
        )


def test_a_disk_that_is_full_ends_no_call(folder):
    code = (
        "import errno, outer\nfrom overlap import files\ndef full(*args): raise OSError(errno.ENOSPC, 'no space')\n"
        "files.write = full\nassert outer.twice(3) == 6"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=300)
    assert not code_files(folder)


@pytest.mark.exhaustive
def test_ranks_that_compile_at_once_get_their_own_code(folder):
    """numba's own cache may give one rank the other's code: both are number 1."""
    several = [start(folder, argument) for argument in ("3", "0.5", "1j", "3")]
    assert [ended(one)[0] for one in several] == [[6], [1.0], [2j], [6]]
    assert run(folder, "3", "0.5", "1j") == ([6, 1.0, 2j], 3)
    assert len(code_files(folder)) == 3


TURN = """
import fcntl, pathlib, time
lock, seen = fcntl.flock, pathlib.Path({folder!r})

def until(name):
    while not (seen / name).exists():
        time.sleep(0.01)

def flock(file, how):
    {steps}

fcntl.flock = flock
{before}
"""


@pytest.mark.parametrize("argument, result", [("3", [([6], 0), ([6], 1)]), ("None", [([], 0)] * 2)])
def test_ranks_that_start_together_compile_once(folder, argument, result):
    """The first one has the turn; the other one waits for its code, also where that cannot be compiled."""
    first = "lock(file, how); (seen / 'has the turn').touch(); until('waits')", ""
    second = "(seen / 'waits').touch(); lock(file, how)", "until('has the turn')"
    report = "try:\n    " + REPORT.strip().replace("\n", "\n    ") + "\nexcept Exception:\n    print('[] 0')"
    codes = [TURN.format(folder=str(folder), steps=steps, before=before) + report for steps, before in (first, second)]
    assert [ended(process) for process in [start(folder, argument, code=code) for code in codes]] == result
    assert not list(folder.rglob("*.turn"))


def test_threads_that_compile_at_once_end_their_own_turns(folder):
    """A turn that ends slowly is ended by no other thread, which would close a file that is open no more."""
    code = """
        import os, time
        from concurrent.futures import ThreadPoolExecutor
        import outer

        close = os.close
        os.close = lambda file: (time.sleep(0.3), close(file))
        with ThreadPoolExecutor(4) as threads:
            print(list(threads.map(outer.twice, [3, 3, 0.5, 3])), 0)
        """
    assert ended(start(folder, code=textwrap.dedent(code))) == ([6, 6, 1.0, 6], 0)
    assert not list(folder.rglob("*.turn"))


def test_who_is_stopped_while_compiling_keeps_nobody(folder):
    holds = TURN.format(
        folder=str(folder), steps="lock(file, how); print('held', flush=True); time.sleep(600)", before=""
    )
    with start(folder, "3", code=holds + REPORT) as stopped:
        try:
            assert stopped.stdout.readline() == "held\n"
            impatient = "import overlap.compiled\noverlap.compiled._TURN_S = 0.2\n"
            assert ended(start(folder, "3", "3.0", code=impatient + REPORT)) == ([6, 6.0], 0)
        finally:
            stopped.kill()


def test_a_change_of_the_source_is_noticed_and_old_code_removed(folder):
    run(folder, "3")
    write(folder, "2 * x + 1")
    assert run(folder, "3") == ([7], 0)
    assert len(code_files(folder)) == 1


@pytest.mark.parametrize("imports", ["from inner import twice as double", exhaustive("import inner as other")])
def test_a_change_of_a_function_that_is_called_is_noticed(folder, imports):
    write(folder, "2 * x", name="inner")
    call = "double(x)" if "from" in imports else "other.twice(x)"
    write(folder, call, imports)
    assert [run(folder, "3") for _ in range(2)] == [([6], 0), ([6], 1)]
    write(folder, "30 * x", name="inner")  # by its size another file, had it the same second
    assert run(folder, "3") == ([90], 0)


def test_a_number_that_the_module_takes_from_elsewhere_is_noticed(folder):
    write(folder, "x * factor", "import os\nfactor = int(os.environ['FACTOR'])")
    assert [run(folder, "3", FACTOR=factor)[0] for factor in ("2", "5")] == [[6], [15]]


def test_c_functions_are_kept_as_well(folder):
    (folder / "outer.py").write_text(
        textwrap.dedent("""
        import ctypes
        from numba import types
        from overlap.compiled import CFunction

        one = CFunction(lambda x: x / 2, types.float64(types.float64))

        def twice(x):
            return ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(one.address)(4 * x)
        """)
    )
    report = "import outer; print([outer.twice(3)], outer.one._compiled.cache_hits)"
    for hits in (0, 1):
        assert ended(start(folder, code=report)) == ([6.0], hits)
    assert len(code_files(folder)) == 1


def test_damaged_code_is_compiled_again(folder):
    run(folder, "3")
    (file,) = code_files(folder)
    for content in (b"", file.read_bytes()[:-1], b"x" * 100):
        file.write_bytes(content)
        assert run(folder, "3") == ([6], 0)
    assert run(folder, "3") == ([6], 1)


def test_constants_are_compiled_as_numbers_of_their_type(folder):
    """numba compiles a function for each constant that other compiled code calls it with."""
    (folder / "outer.py").write_text(
        textwrap.dedent("""
        from overlap.compiled import njit

        @njit
        def _product(x, y):
            return x * y

        @njit
        def twice(x):
            return _product(x, 2) + _product(y=3, x=x) + _product(4, x)
        """)
    )
    report = "import outer; print([outer.twice(7), len(outer._product.signatures)], 0)"
    assert ended(start(folder, code=report)) == ([63, 1], 0)


def test_options_are_those_of_numba():
    from overlap.compiled import njit

    @njit(fastmath=True)
    def one(x):
        return 1 / x

    assert one.targetoptions["nogil"] and one.targetoptions["fastmath"]
    assert one(0.0) == float("inf")


def test_functions_that_users_keep_do_not_outlive_our_collectives(monkeypatch):
    # numba's own cache finds them by their types' names, and looks at no source but their own.
    from overlap.collectives import protocol
    from overlap.collectives.numba_support import CollectivesType

    before = str(CollectivesType())
    assert str(CollectivesType()) == before
    monkeypatch.setattr(protocol, "STEPS", protocol.STEPS + 1)
    assert str(CollectivesType()) != before

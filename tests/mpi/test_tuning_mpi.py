"""Tuning and tuning files on 1 to 3 ranks."""

import gc
import io
import json
import os
from contextlib import contextmanager, nullcontext, redirect_stderr
from itertools import product
from pathlib import Path

import jobs
import numpy as np
import pytest
from everywhere import raised, raises_everywhere, same_everywhere
from marks import exhaustive, on_ranks
from truth import random, same_bits

import overlap
from overlap.fft import Settings, fourier
from overlap.fft.engine import fftw as local
from overlap.fft.planning import candidates, tuning_file
from overlap.fft.planning.tournament import choose
from overlap.files import CACHE_VARIABLE

SHAPE, DTYPE = (24, 12, 10), "f8"
FIELDS = 3, 32, 32, 32  # enough for several units


def product_of(u, v):
    return u * v


def tuned_plan_is_found_again(comm, path, workers):
    """Tune, then plan anew from the file: the same settings, and the bits of `off`."""
    rng = np.random.default_rng(1)
    heard = []
    with overlap.Runtime(comm, workers=workers) as rt, overlap.FFT2(rt, SHAPE, DTYPE, tuning=path) as plan:
        assert "not used: it has no entry" in plan.describe()
        made = [plan.pointwise(lambda u: u)]
        first, second = plan.pointwise(product_of, dealias="3/2"), plan.pointwise(product_of)
        twin = plan.pointwise(lambda u, v: u - v)
        if comm.rank > 0:  # what one rank has dropped is tuned on none
            made.clear()
            gc.collect()
        gains = plan.tune(1.2, progress=lambda *step: heard.append(step))
        assert bool(heard) == (comm.rank == 0)
        assert all(0 <= done <= total == 1.2 for _, done, total in heard)
        transforms = [plan.forward, plan.backward, first, second, twin]
        same_everywhere(comm, [transform.settings for transform in transforms])
        assert twin.settings == second.settings and twin.tuned is second.tuned
        assert len(gains) == (5 if comm.size == 1 else 4)
        assert plan.forward.tuned == gains["forward"]
        for transform in transforms:
            assert transform.tuned.gain > 0
            assert len(transform.trials) == transform.tuned.tried
            assert str(transform.tuned) in transform.describe()
        u = random(rng, SHAPE, DTYPE)[plan.real.local_slice]
        spectrum = plan.forward(u)
        truth = [
            np.array(result)
            for result in (spectrum, plan.backward(spectrum), first(spectrum, spectrum), second(spectrum, spectrum))
        ]
        settings = [transform.settings for transform in transforms[:4]]
        assert f"tuning: from {path}" in plan.describe()
    comm.Barrier()
    assert sorted(json.loads(Path(path).read_text())) == ["digest", "entries", "format", "version"]
    disturb()
    for wait in ("auto", "off", "poll", "block"):
        with (
            overlap.Runtime(comm, workers=workers) as rt,
            overlap.FFT2(rt, SHAPE, DTYPE, tuning=path, settings={"wait": wait}) as plan,
        ):
            first, second = plan.pointwise(product_of, dealias="3/2"), plan.pointwise(product_of)
            transforms = [plan.forward, plan.backward, first, second]
            found = [transform.settings for transform in transforms]
            if wait == "auto":
                assert found == settings, (found, settings)
                assert plan.forward.tuned == gains["forward"] and plan.forward.trials == ()
            assert all(one.wait == wait or wait == "auto" for one in found)
            spectrum = plan.forward(u)
            for result, expected in zip(
                (spectrum, plan.backward(spectrum), first(spectrum, spectrum), second(spectrum, spectrum)), truth
            ):
                assert same_bits(result, expected), wait


@on_ranks("openmpi-2")
def test_under_open_mpi(comm, tmp_path):
    tuned_plan_is_found_again(comm, path=str(tmp_path / "tuning.json"), workers=1)


@on_ranks(2)
def test_tuned_again(comm, tmp_path):
    """Tuning on top of an entry loses neither what that knew nor what is found now."""
    path = f"{tmp_path}/tuning.json"
    rng = np.random.default_rng(3)
    with overlap.FFT2(comm, SHAPE, DTYPE, tuning=path) as plan:
        plan.pointwise(product_of, dealias="3/2")
        u = random(rng, SHAPE, DTYPE)[plan.real.local_slice]
    for number in range(3):
        disturb()
        with overlap.FFT2(comm, SHAPE, DTYPE, tuning=path) as plan:
            if number == 0:
                kept = plan.pointwise(product_of, dealias="3/2")
            plan.tune(0.4)
            if number == 0:
                chosen = kept.settings
            truth = np.array(plan.forward(u))
        for wait in ("auto", "off"):
            disturb()
            with (
                kernels_need_no_planning(),
                overlap.FFT2(comm, SHAPE, DTYPE, tuning=path, settings={"wait": wait}) as plan,
            ):
                assert same_bits(plan.forward(u), truth)
                acting = plan.pointwise(product_of, dealias="3/2")
                assert acting.settings == chosen or wait == "off"


@contextmanager
def kernels_need_no_planning(module=fourier, name="StagedTransform"):
    """Assert that FFTW learns nothing when kernels are made: the file told it all."""
    made = getattr(module, name)

    def watched(*args, **options):
        before = set(local.wisdom(DTYPE).splitlines())
        kernels = made(*args, **options)
        assert set(local.wisdom(DTYPE).splitlines()) == before, args
        return kernels

    setattr(module, name, watched)
    try:
        yield
    finally:
        setattr(module, name, made)


def disturb():
    """FFTW learns other plans, as if this were another process with another past."""
    local.forget()


@on_ranks(2)
def test_requests_come_first(comm, tmp_path):
    """What a plan is asked for by name is not overruled by a file, nor searched."""
    path = f"{tmp_path}/tuning.json"
    with overlap.FFT2(comm, SHAPE, DTYPE, tuning=path, settings={"depth": 3, "chunk": 2}) as plan:
        plan.tune(0.3)
        for trial in plan.forward.trials:
            assert trial.settings.chunk == 2 and trial.settings.depth in (1, 3)
    with overlap.FFT2(
        comm,
        SHAPE,
        DTYPE,
        tuning=path,
        settings={"wait": "poll", "depth": 5, "chunk": 3, "in_flight": 2, "effort": "estimate"},
    ) as plan:
        assert plan.forward.settings == Settings("poll", 5, 3, 2, "estimate", 0.0)
        assert plan.forward.tune(0.2).gain > 0
        assert {trial.settings.wait for trial in plan.forward.trials} == {"poll"}


@on_ranks(1, 3)
def test_without_a_file(comm):
    """Tuning needs no file; one transform alone can be tuned; closed plans cannot."""
    for shape in ((1, 6, 5), (0, 4, 4), (9, 8, 6)):
        with overlap.FFT2(comm, shape, DTYPE, settings={"effort": "estimate"}) as plan:
            before = plan.backward.settings
            tuned = plan.forward.tune(0.2)
            assert tuned is plan.forward.tuned and plan.backward.settings == before
            plan.tune(0.2)
            assert "tuning:" not in plan.describe()
            forward = plan.forward
        raised(overlap.ClosedError, plan.tune)
        raised(overlap.ClosedError, forward.tune)


@on_ranks(2)
def test_bad_files(comm, tmp_path):
    """One clear error on every rank, whatever is wrong with the file on rank 0."""
    path = f"{tmp_path}/tuning.json"
    good = tuning_file.text_of([])
    version = '"version": 3'
    entry = {"plan": {}, "machine": {}, "wisdom": "", "transforms": {"forward": {"depth": 4}}}

    def refused(words, path=path):
        comm.Barrier()
        raises_everywhere(
            comm, overlap.InputError, (words, "received", repr(path)), overlap.FFT2, comm, SHAPE, tuning=path
        )
        comm.Barrier()

    for text, words in (
        (good[:-9], "cut off"),
        (good.replace(version, '"version": 9'), "version 9"),
        (good.replace(version, '"version": 1'), "of version 1; tune anew"),
        (good.replace("entries", "entrees"), "expected a list of entries"),
        (good + " ", "does not match its digest"),
        ("{}", "which is no tuning file"),
        ("", "cut off"),
        ("[" * 10**5, "cut off"),
        (good.replace("[]", "[NaN]"), "NaN is no number"),
        (tuning_file.text_of([entry]), "missing or unknown fields"),
    ):
        if comm.rank == 0:
            Path(path).write_text(text)
        refused(words)
    for make, words in (
        (os.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: os.symlink(path, path), "symbolic links"),
    ):
        if comm.rank == 0:
            (os.rmdir if os.path.isdir(path) else os.remove)(path)
            make(path)
        refused(words)
    refused("null", f"{path}\0")
    folder = os.path.dirname(path)
    with overlap.FFT2(comm, SHAPE, tuning=f"{folder}/missing/file") as plan:
        same_everywhere(comm, str(raised(overlap.InputError, plan.tune, 1)))
        assert "folder" in str(raised(overlap.InputError, plan.tune, 1))
    with overlap.FFT2(comm, SHAPE, tuning=f"{folder}/spoilt", settings={"effort": "estimate"}) as plan:
        if comm.rank == 0:
            Path(folder, "spoilt").write_text("not ours")
        raises_everywhere(comm, overlap.InputError, "spoilt", plan.tune, 0.2)
        plan.forward(plan.real.empty())  # the plan is usable all the same


@on_ranks(2)
def test_a_file_that_is_not_there_is_said(comm, tmp_path):
    """Rank 0 says so, on standard error, and of a file that is there nothing."""
    path = f"{tmp_path}/tuning.json"

    def said():
        told = io.StringIO()
        with redirect_stderr(told), overlap.FFT2(comm, SHAPE, tuning=path, settings={"effort": "estimate"}) as plan:
            if not os.path.exists(path):
                comm.Barrier()
                plan.tune(0.2)
        return told.getvalue()

    text = said()
    assert (repr(path) in text and "not tuned" in text) if comm.rank == 0 else not text
    comm.Barrier()
    assert not said()


@on_ranks(2)
def test_ranks_disagree(comm, tmp_path):
    """Ranks that name different files, or budgets, get one error that says so."""
    path = f"{tmp_path}/tuning.json"
    mine = f"{path}{comm.rank}"
    raises_everywhere(
        comm,
        overlap.InputError,
        ("tuning: expected the same on all ranks", f"{path}1"),
        overlap.FFT2,
        comm,
        SHAPE,
        tuning=mine,
    )
    os.environ["OVERLAP_TUNING"] = mine
    raises_everywhere(comm, overlap.InputError, "", overlap.FFT2, comm, SHAPE)
    with overlap.FFT2(comm, SHAPE, tuning="", settings={"effort": "estimate"}) as plan:
        for bad in (1 + comm.rank, 0, -1, np.nan, np.inf, "1", True, None, "long"):
            same_everywhere(comm, str(raised(overlap.InputError, plan.tune, bad)))
            same_everywhere(comm, str(raised(overlap.InputError, plan.forward.tune, bad)))
    raised(overlap.InputError, overlap.FFT2, comm, SHAPE, tuning=7)


@on_ranks(2)
def test_other_wisdom(comm, tmp_path):
    """An entry whose wisdom FFTW does not take is refused; one of another machine not used."""
    path = f"{tmp_path}/tuning.json"
    os.environ["OVERLAP_TUNING"] = path  # the same as tuning=path
    with overlap.FFT2(comm, SHAPE, DTYPE) as plan:
        plan.tune(0.3)
    comm.Barrier()
    whole = Path(path).read_text()
    comm.Barrier()
    for part, name, value in (("machine", "mpi", "another MPI"), (None, "wisdom", "(fftw-0 )")):
        content = json.loads(whole)
        (entry,) = content["entries"]
        (entry[part] if part else entry)[name] = value
        if comm.rank == 0:
            Path(path).write_text(tuning_file.text_of([entry]))
        comm.Barrier()
        if part:
            with overlap.FFT2(comm, SHAPE, DTYPE, settings={"effort": "measure"}) as plan:
                text = plan.describe()
                assert "of another machine: mpi expected" in text and "another MPI" in text
                assert plan.forward.tuned is None and plan.forward.trials
        else:
            raises_everywhere(comm, overlap.InputError, "wisdom", overlap.FFT2, comm, SHAPE, DTYPE)


@on_ranks(2)
def test_polls(comm):
    """The number of polls is checked, and must be the same on all ranks."""
    with overlap.Runtime(comm) as rt:
        for polls in (0, -1, 1.5):
            error = raised(overlap.InputError, rt.pipelined(no_requests, polls=polls), range(3))
            assert "polls" in str(error)
        pipeline = rt.pipelined(no_requests, polls=2 + comm.rank)
        raises_everywhere(comm, overlap.InputError, "polls: expected the same on all ranks", pipeline, range(3))


async def no_requests(z):
    pass


@contextmanager
def failing(where, name, at=0):
    """Meanwhile a function of this rank runs out of memory, once, after `at` calls."""
    original, calls = getattr(where, name), []

    def fails(*args, **options):
        calls.append(name)
        if len(calls) == at + 1:
            raise MemoryError(f"no room in {name}")
        return original(*args, **options)

    setattr(where, name, fails)
    try:
        yield
    finally:
        setattr(where, name, original)


@on_ranks(2)
def test_a_rank_fails_while_planning(comm):
    """One rank that fails while settings are chosen ends that on all ranks; the plan stays usable."""
    rng = np.random.default_rng(5)
    for make, shape in ((overlap.FFT2, SHAPE), (overlap.FFT3, FIELDS)):
        with make(comm, shape, DTYPE) as plan:
            transform = plan.forward
            u = random(rng, shape, DTYPE)[plan.real.local_slice]
            truth = np.array(transform(u))

            def tunes():
                transform.tune(0.2)

            def chooses():
                choose(transform, Settings(effort="measure"))

            for works, (place, at), rank in product(
                (chooses, tunes),
                (("trial_arrays", 0), ("configure", 3), ("run_planes", 4), ("nbytes_per_slice", 0)),
                {0, comm.size - 1},
            ):
                with failing(type(transform), place, at) if comm.rank == rank else nullcontext():
                    error = raised(overlap.errors.RankError, works)
                same_everywhere(comm, str(error))
                assert error.rank == rank and f"no room in {place}" in str(error)
                assert not transform.planning
                assert same_bits(transform(u), truth)


@on_ranks(2)
def test_a_rank_fails_with_the_file(comm, tmp_path):
    """What only rank 0 does with a tuning file, and fails to do, fails on all ranks."""
    path = f"{tmp_path}/tuning.json"
    for name in ("read", "find"):
        with failing(tuning_file, name) if comm.rank == 0 else nullcontext():
            error = raised(overlap.errors.RankError, overlap.FFT2, comm, SHAPE, tuning=path)
        same_everywhere(comm, str(error))
        assert f"no room in {name}" in str(error)
    with overlap.FFT2(comm, SHAPE, tuning=path) as plan:
        with failing(tuning_file, "write") if comm.rank == 0 else nullcontext():
            same_everywhere(comm, str(raised(overlap.errors.RankError, plan.tune, 0.2)))
        plan.forward(plan.real.empty())
    assert not os.path.exists(path)
    with failing(candidates, "fit_message_time") if comm.rank == comm.size - 1 else nullcontext():
        error = raised(overlap.errors.RankError, overlap.FFT3, comm, (8, 8, 8))
    same_everywhere(comm, str(error))


@on_ranks(1, 2)
def test_plans_are_remembered(comm, tmp_path):
    """A plan comes at once, its first calls find the fastest settings, and a later job knows them."""
    path = f"{tmp_path}/cache"
    os.environ[CACHE_VARIABLE] = path
    rng = np.random.default_rng(8)
    for make, shape in ((overlap.FFT2, SHAPE), (overlap.FFT3, FIELDS)):
        u = random(rng, shape, DTYPE)
        found = []
        for number in range(3):
            if number == 2 and comm.rank == 0:  # a cache whose files are damaged is none
                for file in Path(path).glob("*.plan.json"):
                    file.write_text(file.read_text()[:-9])
            comm.Barrier()
            local.forget()
            with overlap.Runtime(comm) as runtime, make(runtime, shape, DTYPE) as plan:
                if number == 1:
                    assert plan.forward.settings == found[0][0]
                mine = u[plan.real.local_slice]
                truth = np.array(plan.forward(mine))
                assert comm.size > 1 or plan.forward.refinement is None
                out = plan.forward(mine), plan.backward(truth)
                for _ in range(20):
                    out[0][...] = 0
                    assert same_bits(plan.forward(mine, out=out[0]), truth)
                    plan.backward(truth, out=out[1])
                plan.forward.settle(mine, out=out[0], budget_s=10)  # a busy machine could compare for minutes
                plan.backward.settle(truth, out=out[1], budget_s=10)
                assert same_bits(out[0], truth)
                same_everywhere(comm, (plan.forward.settings, plan.backward.settings))
                found.append((plan.forward.settings, truth))
        if comm.rank == 0:
            assert make.__name__ in {entry["plan"]["kind"] for _, entry in tuning_file.cached() if entry}


@pytest.mark.parametrize("ranks, workers", [(1, 2), (2, 1), exhaustive(3, 2)])
def test_a_tuned_plan_is_found_again(ranks, workers, tmp_path):
    jobs.run_job(
        "test_tuning_mpi:tuned_plan_is_found_again",
        ranks,
        args={"path": str(tmp_path / "tuning.json"), "workers": workers},
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["tuning.json"]

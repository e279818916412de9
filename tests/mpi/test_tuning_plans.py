"""Tuning files of plans other than `FFT2`."""

import json
import os
from pathlib import Path

import numpy as np
from everywhere import raised
from marks import on_ranks
from test_tuning_mpi import DTYPE, FIELDS, disturb, kernels_need_no_planning, product_of
from truth import random, same_bits

import overlap
from overlap.fft import bracket
from overlap.fft.planning import tuning_file


@on_ranks(2)
def test_fields_are_found_again(comm, tmp_path):
    """An `FFT3` that was tuned is the same in a later run: grid, settings, FFTW's plans, bits."""
    path = f"{tmp_path}/tuning.json"
    rng = np.random.default_rng(9)
    u, layout = random(rng, FIELDS, DTYPE), {"dealias": "3/2", "order": "transposed"}
    with overlap.FFT3(comm, FIELDS, DTYPE, layout=layout, tuning=path) as plan:
        acting, grid, gains = plan.pointwise(product_of), plan.grid, plan.tune(0.6)
        assert set(gains) == {"forward", "backward", acting.name}
        assert f"tuning: from {path}" in plan.describe()
        u = random(rng, plan.real.global_shape, DTYPE)[plan.real.local_slice]
        settings = [one.settings for one in (plan.forward, plan.backward, acting)]
        spectrum = plan.forward(u)
        truth = [np.array(one) for one in (spectrum, plan.backward(spectrum), acting(spectrum, spectrum))]
    for wait in ("auto", "off"):
        disturb()
        comm.Barrier()
        with (
            kernels_need_no_planning(),
            overlap.FFT3(comm, FIELDS, DTYPE, layout=layout, tuning=path, settings={"wait": wait}) as plan,
        ):
            acting = plan.pointwise(product_of)
            transforms = plan.forward, plan.backward, acting
            assert plan.grid == grid
            if wait == "auto":
                assert [one.settings for one in transforms] == settings
                assert [one.tuned for one in transforms] == list(gains.values())
            spectrum = plan.forward(u)
            for result, expected in zip((spectrum, plan.backward(spectrum), acting(spectrum, spectrum)), truth):
                assert same_bits(result, expected), wait
    with overlap.FFT3(comm, FIELDS, DTYPE, tuning=path, settings={"effort": "estimate"}) as plan:  # another plan
        assert "no entry" in plan.describe() and plan.forward.tuned is None
    comm.Barrier()
    content = json.loads(Path(path).read_text())
    comm.Barrier()
    if comm.rank == 0:
        content["entries"][0]["grid"] = [comm.size, 2]
        Path(path).write_text(tuning_file.text_of(content["entries"]))
    comm.Barrier()
    error = raised(overlap.InputError, overlap.FFT3, comm, FIELDS, DTYPE, layout=layout, tuning=path)
    assert f"expected a grid of {comm.size} ranks" in str(error)


@on_ranks(2)
def test_brackets_are_found_again(comm, tmp_path):
    """So is a `Bracket`."""
    path = f"{tmp_path}/tuning.json"
    rng = np.random.default_rng(10)
    options = {"settings": {"effort": "measure"}, "tuning": path}
    shape = 12, 4, 9, 17
    with overlap.Bracket(comm, shape, **options) as plan:
        a, f = plan.advecting.empty(), plan.spectrum.empty()
        a[...], f[...] = rng.standard_normal(a.shape), rng.standard_normal(f.shape)
        tuned = plan.tune(0.3)["bracket"]
        assert comm.size == 1 or tuned.tried > 1
        plan.advect(a)
        settings, truth = plan.transform.settings, np.array(plan(f))
    for wait in ("auto", "off"):
        disturb()
        comm.Barrier()
        with (
            kernels_need_no_planning(bracket, "PlaneBrackets"),
            overlap.Bracket(comm, shape, settings={"effort": "measure", "wait": wait}, tuning=path) as plan,
        ):
            plan.advect(a)
            assert same_bits(plan(f), truth)
            assert plan.transform.settings == settings or wait == "off"
            assert f"tuning: from {path}" in plan.describe()
    with overlap.Runtime(comm) as runtime:  # ranks with plans of their own
        part = runtime.comm.Split(comm.rank % 2, 0)
        shape = 4, 2, 3, 5 + 2 * (comm.rank % 2)
        if comm.size > 1:
            error = raised(overlap.InputError, overlap.Bracket, part, shape, tuning=path)
            assert "with a tuning file: expected the same on all ranks" in str(error)
        os.environ["OVERLAP_TUNING"] = path
        with overlap.Bracket(part, shape) as plan:
            assert comm.size == 1 or "tuning" not in plan.describe()
        del os.environ["OVERLAP_TUNING"]

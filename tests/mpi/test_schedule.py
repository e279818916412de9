"""Plans as data: run, traced, printed and simulated by the same code."""

import numpy as np
from marks import exhaustive, on_ranks
from truth import random, same_bits

import overlap

ESTIMATE = {"effort": "estimate", "chunk": 1}
PLANS = (
    (overlap.FFT2, (4, 12, 10), {"wait": "off", **ESTIMATE}),
    (overlap.FFT2, (4, 12, 10), {"wait": "poll", "depth": 3, **ESTIMATE}),
    (overlap.FFT3, (8, 6, 10), {"wait": "off", **ESTIMATE}),
    (overlap.FFT3, (8, 6, 10), {"wait": "block", "depth": 3, **ESTIMATE}),
)


@on_ranks(1, 2, exhaustive(3))
def test_traced_is_what_runs(comm):
    """With a trace a call gives the same bits as without, and a span for every exchange and every slice."""
    for make, shape, settings in PLANS:
        with make(comm, shape, settings=settings) as plan:
            u = random(np.random.default_rng(comm.rank), plan.real.shape, "c16")
            expected = np.array(plan.forward(u))
        for workers in (1, 2):
            with (
                overlap.Runtime(comm, workers=workers, trace=True, deadline_s=30) as rt,
                make(rt, shape, settings=settings) as plan,
            ):
                for number in range(3):
                    wall_s = rt.load.wall_s
                    rt.trace.clear()
                    assert same_bits(plan.forward(u), expected)
                    spans = rt.trace.spans()
                    exchanges = [span for span in spans if " of slice " in span.label]
                    parts = plan.forward.configuration.parts
                    assert len(exchanges) == (len(parts) if comm.size > 1 else 0)
                    computed = {span.label for span in spans if span.kind == "compute"}
                    assert computed == {f"slice {part}" for part in parts}
                    assert all(span.start_s <= span.end_s for span in spans)
                    (call,) = [span for span in spans if span.kind == "call"]
                    depth = min(settings.get("depth", 1), len(parts))
                    assert settings["wait"] in call.label and f"depth {depth}" in call.label, (call, number)
                    assert abs(call.end_s - call.start_s - (rt.load.wall_s - wall_s)) < 1e-6
                    computing = [span for span in spans if span.kind == "compute"]
                    assert all(call.start_s <= span.start_s <= span.end_s <= call.end_s for span in computing)


@on_ranks(1, 2, exhaustive(3))
def test_printed(comm):
    """A schedule tells every slice's steps, in their order."""
    with overlap.FFT2(comm, (3, 8, 8), settings={"wait": "poll", **ESTIMATE}) as plan:
        lines = str(plan.forward.schedule).splitlines()
        assert [line.partition(":")[0] for line in lines] == ["0", "1", "2"]
        steps = "pack; Alltoallv on communicator 0; unpack" if comm.size > 1 else "local"
        assert all(line.endswith(f": {steps}") for line in lines), lines
    with overlap.FFT3(comm, (8, 8, 8), settings={"wait": "poll", **ESTIMATE}) as plan:
        text = str(plan.forward.schedule)
        assert "pack" in text and (comm.size == 1 or "wait_for_slices" in text)


@on_ranks(1, 2, exhaustive(3))
def test_other_arrays(comm):
    """One schedule serves all arrays of one kind, wherever they lie; inputs may be one array or several."""
    rng = np.random.default_rng(5)
    with overlap.FFT2(comm, (2, 12, 10), "f8", settings={"wait": "poll", **ESTIMATE}) as plan:
        acting = plan.pointwise(lambda a, b: a * b)
        fields = [random(rng, (2, 12, 10), "f8") for _ in range(3)]
        spectra = [np.array(plan.forward(field[plan.real.local_slice])) for field in fields]
        for first, second in ((0, 0), (0, 1), (2, 1), (1, 1), (2, 0)):
            expected = np.fft.rfft2(fields[first] * fields[second])[plan.spectrum.local_slice]
            np.testing.assert_allclose(acting(spectra[first], spectra[second]), expected, rtol=0, atol=1e-10)
        assert len(acting.configuration.schedules) == 1

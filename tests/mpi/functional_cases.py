"""What `test_functional` runs on every rank."""

import numpy as np
import scipy.fft
from fft2_cases import raised, same_everywhere

import overlap
from overlap import fft
from overlap.arrays import block


def like_scipy(comm):
    """All functions, on distributed and on plain arrays, against scipy on the whole array."""
    rng = np.random.default_rng(3)
    whole = rng.standard_normal((4, 8, 6)) + 1j * rng.standard_normal((4, 8, 6))
    for name, axes, norm in (("fft2", (-2, -1), None), ("fftn", None, "ortho"), ("rfft2", (1, 2), "forward"),
                             ("rfftn", (-3, -2, -1), None), ("fftn", (-2, -1), None)):
        data = whole.real if name.startswith("r") else whole
        count = 3 if axes is None else len(axes)
        part = block(data.shape[-count], comm.size)[comm.rank]
        where = (slice(None),) * (3 - count) + (part,)
        options = {"norm": norm} | ({} if axes is None else {"axes": axes})
        spectrum = getattr(fft, name)(np.ascontiguousarray(data[where]), comm, workers=1, **options)
        expected = getattr(scipy.fft, name)(data, **options)
        assert isinstance(spectrum, overlap.DistArray) and spectrum.global_shape == expected.shape
        np.testing.assert_allclose(spectrum, expected[spectrum.local_slice], rtol=1e-12, atol=1e-12)
        inverse = name.replace("rfft", "irfft") if name.startswith("r") else "i" + name
        back = getattr(fft, inverse)(spectrum, **options)
        np.testing.assert_allclose(back, data[back.local_slice], rtol=1e-12, atol=1e-12)
        again = getattr(fft, name)(back, overwrite_x=True, **options)
        np.testing.assert_allclose(again, spectrum, rtol=1e-11, atol=1e-11)
        plain = getattr(fft, inverse)(np.array(spectrum), comm, s=data.shape[-count:], **options)
        assert np.array_equal(plain, back)
    fft.close_plans()


def refused(comm):
    """What cannot be served is said, on all ranks."""
    u = np.ones((3, 4, 6))
    for options, said in (({"s": (4, 8)}, "neither cut nor padded"), ({"axes": (0, 1)}, "the last two"),
                          ({"axes": (-1,)}, "the last two"), ({"norm": "other"}, "norm")):
        error = raised(overlap.InputError, fft.fft2, u, comm, **options)
        assert said in str(error)
        same_everywhere(comm, str(error).split("received")[0])
    assert "comm" in str(raised(overlap.InputError, fft.fft2, u))
    assert "real" in str(raised(overlap.InputError, fft.rfft2, u + 1j, comm))
    fft.close_plans()


def plans_are_kept_and_bounded(comm):
    """The same plan serves the same call; of many, the last ones are kept."""
    from overlap.fft import functional
    for length in range(2, 2 * functional.KEPT + 2):
        fft.fft2(np.ones((1, 2, length)), comm)
    held = functional._plans_of(comm)
    assert len(held._plans) == functional.KEPT
    last = next(reversed(held._plans.values()))
    fft.fft2(np.ones((1, 2, length)), comm)
    assert next(reversed(held._plans.values())) is last
    fft.close_plans()
    assert last.closed


def numpy_counts(comm):
    """Counts and times may be numpy's numbers; a deadline may be None."""
    with overlap.Runtime(comm, workers=np.int64(2), depth=np.int32(4), in_flight=np.int8(2),
                         agree_every=np.int64(3), deadline_s=np.float64(30)) as runtime, \
            overlap.FFT2(runtime, (6, 8, 8), "f8") as plan:
        assert type(runtime.workers) is int and type(runtime.depth) is int
        np.testing.assert_allclose(plan.backward(plan.forward(np.ones(plan.real.shape))), 1)
    with overlap.Runtime(comm, deadline_s=None) as runtime:
        assert runtime.deadline_s is None

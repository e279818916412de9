"""The simulation: against closed forms, itself and a recorded run; files; the command."""

import json
from dataclasses import replace
from math import inf, nan
from random import Random

import numpy as np
import pytest
import virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from overlap.errors import InputError
from overlap.runtime.trace import Span
from overlap.timing import model
from overlap.timing.simulate import Machine, Options, Program, SimulatedTransfer, Workload, predict, ranks, simulate
from overlap.timing.thread_scaling import ThreadScaling
from overlap.tools import cli
from overlap.tools.predict import strong_scaling

pytestmark = pytest.mark.usefixtures("measured_greenlets")

IDEAL = Machine(name="ideal", fft_flops=1e9, copy_Bps=1e12, latency_s=0.0, bandwidth_Bps=1e6)
WAITS = ("off", "block", "poll")
times = st.floats(1e-4, 1.0)
counts = st.integers(1, 24)


def program(slices, compute_s, exchange_s, split=0.6, messages=1):
    """`slices` slices that compute `compute_s` in two steps; an exchange takes `exchange_s`."""
    return Program.alike(
        slices,
        (split * compute_s, (1 - split) * compute_s),
        (SimulatedTransfer(exchange_s * IDEAL.bandwidth_Bps, messages),),
    )


def wall_s(what, machine=IDEAL, every_rank=False, **options):
    return simulate(what, machine, Options(**options), every_rank=every_rank).wall_s


# ---- closed forms --------------------------------------------------------------------------------


@given(counts, times, times, st.sampled_from([("off", depth) for depth in range(1, 20)] + [("block", 4)]))
def test_without_overlap_or_with_one_thread_inside_mpi_it_is_c_plus_t(slices, compute_s, exchange_s, how):
    wait, depth = how
    assert wall_s(program(slices, compute_s, exchange_s), wait=wait, depth=depth, workers=1) == pytest.approx(
        slices * (compute_s + exchange_s)
    )


@pytest.mark.parametrize("workers, ratio", [(2, 0.5), (2, 1.5), (4, 0.8), (4, 1.2), (8, 1.0), (4, 3)])
def test_blocking_form(workers, ratio):
    """max(C + T/N, T); waiting for a core token until some step ends adds at most 10 % here."""
    slices = 480
    C, T = 1.0, ratio
    step_s = workers * C / slices
    simulated = wall_s(program(slices, step_s, T / slices), wait="block", workers=workers, depth=32)
    least = model.block_s(C, T, workers)
    assert least * (1 - 1e-9) <= simulated <= 1.1 * least


@pytest.mark.parametrize(
    "workers, held_s, expected_s",
    [(1, 0.5, 32.0), (4, 0.0, 8.0), (5, 0.0, 7.0), (4, 0.125, 8.375), (8, 0.5, 16.5), (16, 1.0, 32.0)],
)
def test_steps_that_hold_the_interpreter(workers, held_s, expected_s):
    """32 steps of 1 s: one after the other where they hold it, the first ones staggered by it."""
    assert wall_s(
        Program.alike(32, (1.0,), ()), replace(IDEAL, interpreter_s=held_s), ranks=1, workers=workers, depth=32
    ) == pytest.approx(expected_s)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("ratio", [0.2, 0.7, 1.0, 1.4, 5.0])
@pytest.mark.parametrize("slices", [4, 16, 64, 256])
def test_polling_form(workers, ratio, slices):
    """max(C, T) with fill and drain, up to one step and one exchange."""
    C, T = 1.0, ratio
    step_s = workers * C / slices
    simulated = wall_s(program(slices, step_s, T / slices), workers=workers, depth=16)
    formula = model.poll_s(C, T, slices=slices, workers=workers)
    assert max(C, T) * (1 - 1e-9) <= simulated
    assert abs(simulated - formula) <= (step_s + T / slices) * (1 + 1e-9)


def test_fill_and_drain_by_hand():
    # Four slices of 0.6 + 0.4 s, exchanges of 2 s: the link works from 0.6 to 8.6.
    machine = replace(IDEAL, bandwidth_Bps=1e6)
    assert wall_s(program(4, 1.0, 2.0), machine, depth=4) == pytest.approx(9.0)
    # One slot: no slice starts before the last has ended.
    assert wall_s(program(4, 1.0, 2.0), machine, depth=1) == pytest.approx(12.0)
    # Blocking, two workers, one slice: nothing to hide it behind.
    assert wall_s(program(1, 1.0, 2.0), wait="block", workers=2) == pytest.approx(3.0)


# ---- the machine ---------------------------------------------------------------------------------


def test_what_each_number_costs():
    one = program(1, 0.0, 1.0, messages=3)
    base = dict(wait="off", ranks=4)
    assert wall_s(one, **base) == pytest.approx(1.0)
    assert wall_s(one, replace(IDEAL, message_s=0.1), **base) == pytest.approx(1.3 + 0.2)  # tree
    assert wall_s(one, replace(IDEAL, operation_s=0.2), **base) == pytest.approx(1.2)
    assert wall_s(one, replace(IDEAL, latency_s=0.1), **base) == pytest.approx(1.1 + 0.2)
    assert wall_s(one, replace(IDEAL, burst_nbytes=5e5), **base) == pytest.approx(0.5)
    # Two ranks share a card: twice the bytes of two thirds of the partners; a third is a copy.
    shared = replace(IDEAL, ranks_per_node=2, copy_Bps=1e6)
    assert wall_s(one, shared, **base) == pytest.approx(1 / 3 + 4 / 3)
    assert wall_s(one, replace(shared, ranks_per_node=4), **base) == pytest.approx(1.0)


def test_core_time_is_taken_from_the_worker():
    """Ten slices of 1 s, exchanges of 0.1 s that cost half of that in core time."""
    C, T = 10.0, 1.0
    free = wall_s(program(10, 1.0, 0.1), depth=10)
    costly = replace(IDEAL, byte_s=0.5 / IDEAL.bandwidth_Bps)
    taken = wall_s(program(10, 1.0, 0.1), costly, depth=10)
    assert free == pytest.approx(C, abs=0.15)
    assert taken - free == pytest.approx(0.5 * T, abs=0.11)
    # With a core that is idle, it costs nothing.
    idle = [wall_s(program(1, 1.0, 0.1), machine, workers=2) for machine in (IDEAL, costly)]
    assert idle[0] == idle[1]


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_cores_that_compute_and_communicate(workers, ratio):
    """max(C + K/N, T), up to what fill and drain add: of T, 0.4 is work of the cores."""
    slices, C, T = 240, 1.0, ratio
    machine = replace(IDEAL, byte_s=0.4 / IDEAL.bandwidth_Bps)
    simulated = wall_s(program(slices, workers * C / slices, T / slices), machine, workers=workers, depth=32)
    bound = model.poll_s(C, T, workers=workers, core_s=0.4 * T)
    assert bound * (1 - 1e-3) <= simulated <= 1.05 * bound


def test_small_messages_leave_before_the_receiver_is_there():
    programs = [program(1, compute_s, 1.0, split=1.0) for compute_s in (0.0, 5.0)]
    programs = [replace(p, transfers=((SimulatedTransfer(1e6, 1),),)) for p in programs]
    assert wall_s(programs, wait="off") == pytest.approx(6.0)
    programs[1] = replace(programs[1], transfers=((SimulatedTransfer(1e3, 1),),))
    assert wall_s(programs, replace(IDEAL, eager_nbytes=2e6), wait="off") == pytest.approx(5.001)


# ---- properties ----------------------------------------------------------------------------------


@given(st.sampled_from(WAITS), counts, times, times, st.integers(1, 4), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_never_faster_than_the_bound(wait, slices, compute_s, exchange_s, workers, depth, in_flight):
    what = program(slices, compute_s, exchange_s)
    bound = max(slices * compute_s / workers, slices * exchange_s)
    assert wall_s(what, wait=wait, workers=workers, depth=depth, in_flight=in_flight) >= bound * (1 - 1e-9)


@given(st.sampled_from(WAITS), counts, times, times, st.integers(1, 8), st.floats(1.0, 10.0))
@settings(max_examples=60, deadline=None)
def test_a_faster_network_is_never_slower(wait, slices, compute_s, exchange_s, depth, factor):
    """With one thread; with several, order can matter."""
    what = program(slices, compute_s, exchange_s)
    faster = replace(IDEAL, bandwidth_Bps=factor * IDEAL.bandwidth_Bps)
    slow_s = wall_s(what, wait=wait, depth=depth)
    assert wall_s(what, faster, wait=wait, depth=depth) <= slow_s + 1e-9


@given(st.sampled_from(WAITS), counts, st.integers(1, 6), st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_one_rank_stands_for_all(wait, slices, ranks, workers, exchanges):
    machine = replace(
        IDEAL,
        latency_s=1e-4,
        message_s=1e-5,
        byte_s=1e-8,
        poll_s=1e-5,
        ranks_per_node=2 if ranks % 2 == 0 else 1,
        burst_nbytes=100,
        wake_s=1e-5,
        operation_s=1e-5,
        copy_Bps=1e8,
    )
    what = Program.alike(slices, (1e-3,) * (exchanges + 1), (SimulatedTransfer(500, ranks - 1),) * exchanges)
    options = Options(ranks=ranks, workers=workers, wait=wait, depth=4)
    one, every = (simulate(what, machine, options, every_rank=each) for each in (False, True))
    assert one.simulated == 1 and every.simulated == ranks
    assert one.wall_s == pytest.approx(every.wall_s, rel=1e-12)
    assert one.order == every.order


@st.composite
def jobs(draw):
    """Machines, programs of every rank, and options, of all kinds."""
    count = draw(st.sampled_from([1, 2, 3, 4, 6]))
    number = st.sampled_from
    machine = replace(
        IDEAL,
        copy_Bps=draw(number([1e12, 1e8, 1e6])),
        latency_s=draw(number([0.0, 1e-4, 1e-5])),
        bandwidth_Bps=draw(number([1e6, 1e9])),
        message_s=draw(number([0.0, 1e-5])),
        byte_s=draw(number([0.0, 1e-8, 1e-7])),
        burst_nbytes=draw(number([0.0, 100.0, 1e4])),
        eager_nbytes=draw(number([0.0, 300.0, 1e6])),
        ranks_per_node=draw(number([1, 2, 3, 16])),
        operation_s=draw(number([0.0, 1e-5])),
        interpreter_s=draw(number([0.0, 1e-4, 1e-2])),
        poll_s=draw(number([0.0, 1e-5, 1e-6])),
        wake_s=draw(number([0.0, 1e-5])),
        jitter=draw(number([0.0, 0.1, 1.0])),
    )
    exchanges = draw(st.lists(st.integers(0, 3), max_size=24))
    random = Random(draw(st.integers(0, 999)))

    def one_rank():
        steps = (
            tuple(random.choice((0.0, 2e-5, 1e-3, 1e-3 * random.random())) for _ in range(n + 1)) for n in exchanges
        )
        transfers = (
            tuple(
                SimulatedTransfer(random.choice((0.0, 500.0, 1e3 * random.random())), random.choice((0, 1, count - 1)))
                for _ in range(n)
            )
            for n in exchanges
        )
        return Program(tuple(steps), tuple(transfers))

    programs = [one_rank() for _ in range(count)] if draw(st.booleans()) else [one_rank()] * count
    options = Options(
        ranks=count,
        workers=draw(st.integers(1, 5)),
        wait=draw(st.sampled_from(WAITS)),
        depth=draw(number([1, 2, 4, 9])),
        in_flight=draw(number([None, 1, 2])),
        seed=draw(st.integers(0, 99)),
        speeds=draw(st.none() | st.just(tuple(0.5 + random.random() for _ in range(count)))),
    )
    return machine, programs, options


@given(jobs())
@settings(max_examples=150, deadline=None)
def test_it_is_the_loop_on_a_virtual_clock(job):
    """The source of the loop, run on a virtual clock, takes the same time to the last bit, in the same order."""
    machine, programs, options = job
    result = simulate(programs, machine, options)
    assert (result.wall_s, result.order) == virtual.run(programs, machine, options)


def test_first_ranks_steps_and_exchanges_are_told():
    """Two slices without overlap: step, exchange, step; one after the other."""
    what = Program.alike(2, (1.0, 3.0), (SimulatedTransfer(2e6, 1),))
    found = ranks.run(IDEAL, [what], [1.0], Options(wait="off", depth=1), np.empty((1, 0)))
    np.testing.assert_allclose(found.steps_s, [[[0, 1], [3, 6]], [[6, 7], [9, 12]]])
    np.testing.assert_allclose(found.exchanges_s, [[[1, 3]], [[7, 9]]])


@pytest.mark.parametrize("depth", [1, 3, 4, 8])
@pytest.mark.parametrize("wait", WAITS)
def test_issue_order(wait, depth):
    """Slot by slot, round by round, whatever the ranks' times are, as the runtime documents."""
    slices = 10
    machine = replace(IDEAL, jitter=1.0)
    what = Program.alike(slices, (1e-3,) * 3, (SimulatedTransfer(300, 1),) * 2)
    slots = [[(z, k) for z in range(slot, slices, depth) for k in range(2)] for slot in range(depth)]
    expected = [slot[turn] for turn in range(2 * slices) for slot in slots if turn < len(slot)]
    for seed in range(3):
        result = simulate(what, machine, Options(ranks=3, workers=2, wait=wait, depth=depth, seed=seed))
        assert result.order == expected and result.simulated == 3


def test_jitter_is_reproducible_and_costs():
    machine = replace(IDEAL, jitter=0.3)
    what = program(30, 0.01, 0.01)
    first, again, other = (wall_s(what, machine, ranks=8, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert wall_s(what, machine, ranks=8, wait="off") > 1.05 * wall_s(what, wait="off")


def test_ranks_with_different_programs():
    slow, fast = program(8, 0.2, 0.01), program(8, 0.1, 0.01)
    assert wall_s([slow, fast], wait="off") == pytest.approx(8 * 0.21)
    with pytest.raises(InputError, match="one for each of 2 ranks"):
        wall_s([slow])
    with pytest.raises(InputError, match="same number of exchanges"):
        wall_s([slow, program(9, 0.1, 0.01)])


# ---- workloads -----------------------------------------------------------------------------------


def test_program_of_a_transform():
    what = Workload(slices=6, shape=(8, 16)).program(4, IDEAL, chunk=4)
    assert len(what.steps) == 2  # chunks of 3
    # 2 rows of 16 points, 4 columns of 8: 5 n log2 n each.
    assert what.steps[0] == pytest.approx((3 * 2 * 5 * 16 * 4e-9, 3 * 4 * 5 * 8 * 3e-9))
    assert what.transfers[0] == (SimulatedTransfer(3 * 2 * 12 * 16, 3),)
    measured = Workload(slices=6, shape=(8, 16)).program(4, IDEAL, compute_s=2.0, workers=3)
    assert measured.compute_s == pytest.approx(6.0)


def test_program_of_an_operation():
    what = Workload(workload="operation", slices=1, shape=(8, 16), dtype="f8").program(8, IDEAL)
    (steps,), (transfers,) = what.steps, what.transfers
    columns, row = 2 * 5 * 8 * 3e-9, 5 * 16 * 4e-9 / 2  # 9 columns over 8 ranks: the first has 2
    assert steps == pytest.approx((4 * columns, 5 * row, columns))
    assert transfers == (SimulatedTransfer(4 * 2 * 7 * 16, 7), SimulatedTransfer(7 * 16, 7))


def test_beyond_one_row_per_rank_nothing_is_sent():
    few, many = (Workload(shape=(8, 16)).program(ranks, IDEAL) for ranks in (16, 4096))
    assert few == many


def test_strong_scaling_of_many_ranks():
    rows = strong_scaling(
        Workload(slices=64), replace(IDEAL, bandwidth_Bps=1e9, latency_s=1e-6), [2, 64, 65536], workers=4
    )
    assert [row.ranks for row in rows] == [2, 64, 65536]
    assert rows[0].limit == "computing" and "fewer rows than ranks" in rows[2].limit
    assert all(row.wall_s <= row.off_s for row in rows)


# ---- machine files -------------------------------------------------------------------------------


def test_machine_file_round_trip(tmp_path):
    machine = replace(
        IDEAL,
        name='quotes " and \\',
        latency_s=1.25e-6,
        ranks_per_node=4,
        threads=ThreadScaling.of_table({64: {2: 1.5}, 512: {2: 1.875, 4: 3.5}}),
    )
    machine.write(tmp_path / "m.toml")
    assert Machine.read(tmp_path / "m.toml") == machine
    assert [path.name for path in tmp_path.iterdir()] == ["m.toml"]


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("latency_s = 0.0", "latency_s = -1.0", "network.latency_s: expected a finite number >= 0"),
        ("latency_s = 0.0", "latency_s = nan", "network.latency_s: expected a finite number >= 0"),
        ("latency_s = 0.0", "latency_s = true", "received True"),
        ("latency_s = 0.0", "", "network.latency_s: missing, expected a finite number >= 0"),
        ("latency_s = 0.0", "lag = 1", "network.lag: unknown, expected one of name, compute.fft_flops"),
        ("bandwidth_Bps = 1000000.0", "bandwidth_Bps = 0", "expected a finite number > 0, received 0"),
        ("ranks_per_node = 1", "ranks_per_node = 1.5", "expected an integer >= 1, received 1.5"),
        ("[network]", "[wires]", "wires.latency_s: unknown"),
        ("[network]", "[network", "expected a machine as TOML"),
        ("[network]", "[threads]\n64 = {2 = -1.0}\n[network]", "expected tables of speed-ups > 0"),
        ("[network]", "[threads]\n64 = 2\n[network]", "expected tables of speed-ups > 0"),
        ('name = "ideal"', "name = 3", "name: expected text, received 3"),
    ],
)
def test_bad_machine_files(tmp_path, old, new, complaint):
    text = IDEAL.text()
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        Machine.read(path)
    assert complaint in str(caught.value) and "bad.toml" in str(caught.value)


def test_all_that_is_wrong_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text("name = 'x'\nspeed = 1\n[network]\nlatency_s = -1\n")
    with pytest.raises(InputError) as caught:
        Machine.read(tmp_path / "bad.toml")
    for words in ("speed: unknown", "latency_s: expected", "fft_flops: missing", "bandwidth_Bps: missing"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    "call, complaint",
    [
        (lambda: Options(ranks=0), "expected ranks to be an integer >= 1"),
        (lambda: Options(ranks=True), "expected ranks to be an integer >= 1"),
        (lambda: Options(in_flight=1.5), "expected in_flight to be an integer >= 1 or None"),
        (lambda: Options(seed="x"), "expected seed to be an integer >= 0"),
        (lambda: Options(speeds=5), "expected speeds to be 2 positive numbers, one per rank, received 5"),
        (lambda: Options(wait="auto"), "expected wait to be one of off, block, poll"),
        (lambda: replace(IDEAL, jitter=-1.0), "runtime.jitter"),
        (lambda: Program(((1.0,),), ((SimulatedTransfer(1, 1),),)), "expected one more than the 1 exchanges"),
        (lambda: Program.alike(1, (-1.0,), ()), "expected finite numbers >= 0"),
        (lambda: Workload(workload="fft9"), "expected workload to be one of fft2, operation"),
        (lambda: Workload(shape=(0, 4)), "expected shape to be an integer >= 1, received 0"),
        (lambda: Workload(shape=8), "expected shape to be .ny, nx., received 8"),
        (lambda: Workload(slices=2.5), "expected slices to be an integer >= 1"),
        (lambda: Workload(workload="operation", dtype="c16"), "to be one of f4, f8, received 'c16'"),
        (lambda: Workload().program(0, IDEAL), "expected ranks to be an integer >= 1"),
        (lambda: Workload().program(2, IDEAL, rank=2), "expected rank to be an integer from 0 to 1"),
        (lambda: Workload().program(2, IDEAL, rank=-1), "expected rank to be an integer from 0 to 1"),
        (lambda: Workload().program(2, IDEAL, chunk=0), "expected chunk to be an integer >= 1"),
        (lambda: Workload().program(2, IDEAL, workers=0), "expected workers to be an integer >= 1"),
        (lambda: Workload().program(2, IDEAL, compute_s=-1), "expected compute_s to be a non-negative number"),
        (lambda: Workload().program(2, IDEAL, weights=(1,)), "expected weights to be 2 positive numbers, one per rank"),
    ],
)
def test_refusals(call, complaint):
    with pytest.raises(InputError, match=complaint):
        call()


# ---- the command ---------------------------------------------------------------------------------


def test_predict_command(tmp_path, capsys):
    machine, out = tmp_path / "m.toml", tmp_path / "rows.json"
    IDEAL.write(machine)
    given = f"predict --workload fft2 --machine {machine} --slices 8 --shape 64 64 --json {out}".split()
    assert cli.main([*given, "--ranks", "2", "4", "--png", str(tmp_path / "s.png")]) == 0
    shown = capsys.readouterr().out
    assert "max(C + T/N, T)" in shown and "bandwidth" in shown
    rows = json.loads(out.read_text())
    assert [row["ranks"] for row in rows] == [2, 4]
    assert rows[0]["bound_s"] == max(rows[0]["compute_s"], rows[0]["communication_s"])
    assert (tmp_path / "s.png").stat().st_size > 1000
    measured = [*given, "--compute-s", "3", "--chunk", "1"]
    assert cli.main(measured) == 0
    assert json.loads(out.read_text())[0]["compute_s"] == pytest.approx(3.0)
    assert cli.main([*measured, "--ranks", "2", "4"]) == 1


def test_predict_command_refuses(tmp_path, capsys):
    (tmp_path / "m.toml").write_text("[wires]\n")
    assert cli.main(["predict", "--workload", "fft2", "--machine", str(tmp_path / "m.toml")]) == 1
    assert capsys.readouterr().err.startswith("overlap: error: ")
    for argv in (["predict", "--workload", "fft2"], ["info", "--link", "2gbit"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(argv)
        assert stop.value.code == 2
        assert "expected" in capsys.readouterr().err


def test_prediction_beside_the_model():
    found = predict(program(64, 1e-3, 2e-3), IDEAL, Options(wait="poll", depth=16))
    assert (found.compute_s, found.communication_s) == pytest.approx((0.064, 0.128))
    assert found.off_s == pytest.approx(0.192) and found.bound_s == pytest.approx(0.128)
    assert found.wall_s == pytest.approx(found.model_s, rel=0.02)
    assert 0.95 < found.hidden <= 1 and found.gain == pytest.approx(1.5, rel=0.03)


def test_ranks_of_different_speeds():
    """Computing takes what the formula says; a slow rank holds up an exchange, shares that follow speeds do not."""
    speeds = (1.0, 1.0, 4 / 7, 1.0)
    machine = Machine(name="none", fft_flops=1e9, copy_Bps=1e12, latency_s=0.0, bandwidth_Bps=1e12)
    for wait in ("off", "poll", "block"):
        options = Options(ranks=4, wait=wait, speeds=speeds)
        for weights in ((1, 1, 1, 1), speeds, (7, 1, 1, 1)):
            parts = [weight / sum(weights) for weight in weights]
            programs = [Program.alike(6, (4 * part, 0.0), (SimulatedTransfer(0.0, 3),)) for part in parts]
            expected = model.uneven_compute_s(6.0, speeds, weights)
            found_s = simulate(programs, machine, options).wall_s
            assert expected * (1 - 1e-12) <= found_s <= expected * (1 + 1e-9)
        even = simulate(Program.alike(6, (1.0, 0.0), (SimulatedTransfer(0.0, 3),)), machine, options)
        assert even.simulated == 4 and even.wall_s == pytest.approx(6.0 * 7 / 4)
    for bad in ((1.0,), (1.0, 1.0, 0.0, 1.0), (1.0, 1.0, nan, 1.0)):
        with pytest.raises(InputError, match="expected speeds to be 4 positive numbers"):
            Options(ranks=4, speeds=bad)


def test_uneven_computing_has_a_formula():
    assert model.uneven_compute_s(3.0, (1, 1)) == 3.0
    assert model.uneven_compute_s(1.0, (7, 4)) == pytest.approx(2 / 11)
    assert model.uneven_compute_s(1.0, (7, 4), (1, 1)) == pytest.approx(1 / 4)
    for bad in (((), None), ((1, 0), None), ((1, 1), (1,)), ((1, inf), None)):
        with pytest.raises(ValueError, match="equally many positive speeds"):
            model.uneven_compute_s(1.0, *bad)


def test_a_workload_with_weights():
    """The shares of a plan: what is computed and sent by all ranks together stays, or falls."""
    machine = Machine(name="none", fft_flops=1e9, copy_Bps=1e12, latency_s=0.0, bandwidth_Bps=1e12)
    workload = Workload(shape=(44, 66), slices=2)
    even, uneven = (
        [workload.program(2, machine, rank=rank, weights=weights) for rank in range(2)] for weights in (None, (7, 4))
    )
    assert sum(one.compute_s for one in even) == pytest.approx(sum(one.compute_s for one in uneven))
    assert uneven[0].compute_s / uneven[1].compute_s == pytest.approx(7 / 4)
    assert [len(one.transfers) for one in even] == [len(one.transfers) for one in uneven]


def traced(times):
    """Spans of rank 1, one slice after the other: computing, exchanging, computing, ... for the given seconds."""
    spans, at_s = [Span(0, "worker 0", "compute", "slice 0", 0.0, 9.0)], 3.0
    for number, own in enumerate(times):
        for place, seconds in enumerate(own):
            kind = "communicate" if place % 2 else "compute"
            label = f"Alltoall on communicator 0 of slice {number}" if place % 2 else f"slice {number}"
            spans.append(Span(1, "worker 0", kind, label, at_s, at_s + seconds))
            at_s += seconds
        spans.append(Span(1, "worker 0", "communicate", "agreement of all ranks", at_s, at_s + 0.5))
    return spans


def test_a_program_of_a_trace_takes_the_traced_times():
    machine = Machine(name="x", fft_flops=1, copy_Bps=1, latency_s=0.01, bandwidth_Bps=1e6)
    spans = traced([(0.2, 0.11, 0.3, 0.06, 0.1), (0.4, 0.21, 0.0)])
    program = Program.of_trace(reversed(spans), machine, rank=1)
    assert [pytest.approx(steps) for steps in program.steps] == [(0.2, 0.3, 0.1), (0.4, 0.0)]
    sent = [[transfer.nbytes for transfer in transfers] for transfers in program.transfers]
    assert sent == [pytest.approx([1e5, 5e4]), pytest.approx([2e5])]
    found = predict(program, machine, Options(ranks=2, wait="off"))
    agreement_s = 0.01  # of all ranks at the end: one latency
    assert found.wall_s == pytest.approx(0.2 + 0.11 + 0.3 + 0.06 + 0.1 + 0.4 + 0.21 + agreement_s)


def test_a_trace_of_several_calls_or_of_none_is_refused():
    machine = Machine(name="x", fft_flops=1, copy_Bps=1, latency_s=0.0, bandwidth_Bps=1)
    for spans in ([], traced([(0.2, 0.1, 0.3)])[1:] * 2, traced([(0.2, 0.1)])):
        with pytest.raises(InputError):
            Program.of_trace(spans, machine, rank=1)

"""How long a simulation takes: 256 slices on many ranks, one of them for all, and each by itself.

python bench/simulation_speed.py [--ranks 4096] [--jitter 0.1]
"""

import argparse
from time import perf_counter

from overlap.timing.simulate import Machine, Options, Workload, simulate


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--slices", type=int, default=256)
    parser.add_argument("--jitter", type=float, default=0.1)
    options = parser.parse_args()
    for jitter in (0.0, options.jitter):
        machine = Machine(
            name="some",
            fft_flops=2e9,
            copy_Bps=5e9,
            latency_s=1e-5,
            bandwidth_Bps=1e9,
            message_s=1e-7,
            poll_s=2e-6,
            jitter=jitter,
        )
        program = Workload(slices=options.slices).program(options.ranks, machine)
        started = perf_counter()
        result = simulate(program, machine, Options(ranks=options.ranks, depth=16))
        print(
            f"{options.ranks} ranks x {options.slices} slices, jitter {jitter}: "
            f"{result.simulated} simulated in {perf_counter() - started:.2f} s "
            f"({result.wall_s * 1e3:.2f} ms of virtual time)",
            flush=True,
        )


if __name__ == "__main__":
    main()

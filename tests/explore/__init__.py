"""The runtime's schedules, explored.

A bug in the scheduler shows only if threads, ranks and network take turns in one certain way. Here that
order is drawn from a seed, thousands of times, with the runtime's own code and without MPI. The tests are in
``tests/unit/test_explore.py``; ``python -m tests.campaign --part schedules`` explores as many as there is time for.
``schedule.explore(seed)`` is one of them, exactly as before; ``programs.draw(seed)`` is what it runs.

Lowest first:

    threads     greenlets in the place of threads; which one goes on is drawn
    network     in the place of MPI: completes operations when it likes, and checks that they match
    source      the runtime's modules once more, with a preemption point between any two statements
    programs    random slice programs with failures, and what must come of them
    schedule    one schedule: the ranks, and everything that is checked
    defects     mistakes put back into the source, to see that they are found

A seed draws a plan (ranks, workers, up to three calls on the same runtime objects: programs, ways to wait,
failures) and the order of events. What is checked: every call ends on all ranks, in the same way; an error is
that of a failure that happened; operations are issued once, in the order that the program alone says; each
step runs once; barriers, `wait_for_slices` and `parallel` keep their promise; no more is in flight, or on
the cores, than allowed; nothing is left in the network, nor alive, when a call is over.

A finding shows its seed, and where every thread stands if the ranks wait for ever. To pin one down, write
its plan as a test with `programs.Plan` and `programs.Call`, as in ``tests/unit/test_explore.py``.
"""

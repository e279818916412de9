"""The runtime's schedules, explored.

A bug in the scheduler shows only if threads, ranks and network happen to take turns in one certain way.
Here that order is drawn from a seed, thousands of times, with the runtime's own code and without MPI:

    python -m tests.explore --schedules 30000       # a campaign; a seed for each failure
    python -m tests.explore --replay 1234           # that failure once more, exactly

Lowest first:

    threads     greenlets in the place of threads; which one goes on is drawn
    network     in the place of MPI: completes operations when it likes, and checks that they match
    source      the runtime's modules once more, with a preemption point between any two statements
    programs    random slice programs with failures, and what must come of them
    schedule    one schedule: the ranks, and everything that is checked
    campaign    many schedules, on several processes
"""

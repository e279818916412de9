"""Strong scaling: the same work on more and more ranks, here or on a cluster, and its figures.

submit            job scripts for a cluster, from the templates beside it
scaling_report    reports of one piece of work as one: table, page, figures (time, acceleration, gain)
solver_scaling    a sparse solver on growing numbers of ranks
commands          `overlap scale run | submit | template | report`: the matrix of ranks x workers x modes
"""

"""Strong scaling: the same work on more and more ranks, here or on a cluster, and its figures.

run        the matrix of ranks x workers x modes, measured into one report
submit     job scripts that do so on a cluster, from the templates beside it
merge      reports of one piece of work as one
figures    time, acceleration and gain against ranks
report     table, figures and page of merged reports
commands   `overlap scale run | submit | template | report`
"""

"""Strong scaling: the same work on more and more ranks, here or on a cluster, and its figures.

    run        the matrix of ranks x workers x modes, measured into one report
    submit     job scripts that do so on a cluster, from the templates beside it
    report     merges reports: table, figures, page
    commands   `overlap scale run | submit | template | report`
"""

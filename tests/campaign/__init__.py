"""The campaign: what "reliable" means, in numbers. Not part of the default run.

    python -m tests.campaign [--minutes N] [--part NAME ...]      go on where the last run ended
    python -m tests.campaign --again [TIMES] [--part NAME ...]    run the seeds that have failed again on this commit
    python -m tests.campaign --part NAME --seed N                 one seed again; nothing is recorded

Every `harness.Part` is a file of this folder that ends with its `PART`. A part is worth what it can find: each brings
a defect of its own, which the campaign puts in before it counts anything, and which must be found. Modules `*_cases`
run on the ranks.
"""

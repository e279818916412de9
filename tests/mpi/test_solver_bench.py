"""`overlap bench halo | spmv | cg | mgcg`."""

import jobs


def test_records():
    jobs.run_job("solver_bench_cases:springs,late_sums,records", 2)

"""Ends and edges of plans on 1 and 2 ranks; see `plan_edge_cases`."""

import jobs
import pytest


@pytest.mark.parametrize("ranks", [1, 2])
def test_edges_of_plans(ranks):
    jobs.run_job("plan_edge_cases:not_copied,closed,overlapping,bounded,different_plans,alike_plans", ranks)

"""Pools of threads are looked for again when modules have come, which may have brought some, and not before."""

import sys
import types

import threadpoolctl

from overlap.runtime.threads.workers import single_threaded_pools


def test_looked_for_when_modules_have_come(monkeypatch):
    looks, look = [], threadpoolctl.ThreadpoolController
    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: looks.append(1) or look())
    monkeypatch.setitem(sys.modules, "one_more", types.ModuleType("one_more"))
    for _ in range(3):
        with single_threaded_pools():
            assert all(pool["num_threads"] == 1 for pool in threadpoolctl.threadpool_info())
    first = len(looks)
    monkeypatch.setitem(sys.modules, "another", types.ModuleType("another"))
    with single_threaded_pools():
        pass
    assert len(looks) == first + 1

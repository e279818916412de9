"""Launchers that are kept: ranks that take cases in turn, for as long as none fails."""

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import processes
import rank
from processes import MARK, JobFailed, Result, end_all, marked, start, text_of

START_S = 300.0  # for a launcher to start its ranks
END_S = 30.0  # for ranks to end by themselves, on a machine that has other work
JOIN_IN_S = 1.0  # for other ranks to say why they fail too
MOST_RANKS = 24  # that wait for cases at a time


class Launcher:
    """Ranks that run cases in turn, until one fails.

    Every rank is connected through a Unix socket, from which it reads the next case and to which it
    writes one line when it is done; so waiting ranks sleep, and one that dies is noticed at once.
    """

    def __init__(self, ranks, mpi):
        self.ranks = ranks
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.mkdtemp(prefix="overlap-job-")
        self.number = 0
        self.last = "its start"
        self.killed = False
        self.channels = {}  # connection -> (rank, pid, file to read lines from)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self.folder}/socket")
            listener.listen(ranks)
            listener.settimeout(0.1)
            self.process = start(ranks, mpi, self.folder, {MARK: self.mark}, ["serve", f"{self.folder}/socket"])
            try:
                self._accept(listener)
            except BaseException:
                self.kill()
                raise
        self.members = set(marked(self.mark))

    def _accept(self, listener):
        end = time.monotonic() + START_S
        while len(self.channels) < self.ranks:
            if self.process.poll() is not None or time.monotonic() > end:
                raise JobFailed(f"{self.ranks} ranks did not start: {text_of(self.folder, 'err')}")
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(max(0.1, end - time.monotonic()))
            lines = connection.makefile("rb")
            hello = json.loads(lines.readline() or "{}")
            if hello:
                self.channels[connection] = hello["rank"], hello["pid"], lines

    def run(self, case, args, deadline_s):
        """Run a case; see `run_job`."""
        __tracebackhide__ = True
        self.number += 1
        folder = Path(self.folder, str(self.number))
        folder.mkdir()
        request = {"case": case, "args": args, "deadline_s": deadline_s, "folder": folder}
        started = time.monotonic()
        try:
            for connection in self.channels:
                connection.settimeout(deadline_s)
                connection.sendall(rank.encoded(request).encode() + b"\n")
        except OSError:
            self.kill()
            raise JobFailed(
                f"{case}: not run, for the ranks have ended after {self.last}: {text_of(self.folder, 'err')}"
            ) from None
        answers, ended = self._answers(started + deadline_s)
        problem = self._problem(answers, ended, deadline_s) or self._left()
        if problem:
            self._show_stacks(answers)
        result = Result(
            int(bool(problem)),
            text_of(folder, "out*"),
            text_of(folder, "err*"),
            tuple(sorted(one for one, failed in answers.items() if failed is False)),
            time.monotonic() - started,
        )
        self.last = case
        shutil.rmtree(folder)
        if problem:
            self.kill()
            raise JobFailed(f"{case}: {problem}; {result}")
        return result

    def _answers(self, end):
        """{rank: failed, or None where it has died}, and whether there was time for all."""
        answers = {}
        with selectors.DefaultSelector() as selector:
            for connection in self.channels:
                selector.register(connection, selectors.EVENT_READ)
            while len(answers) < self.ranks:
                ready = selector.select(max(0, end - time.monotonic()))
                if not ready:
                    return answers, False
                for key, _ in ready:
                    one, _, lines = self.channels[key.fileobj]
                    line = lines.readline()
                    answers[one] = json.loads(line)["failed"] if line else None
                    selector.unregister(key.fileobj)
                    if answers[one] is not False:
                        end = min(end, time.monotonic() + JOIN_IN_S)
        return answers, True

    def _problem(self, answers, ended, deadline_s):
        died = sorted(one for one, failed in answers.items() if failed is None)
        if died:
            return f"rank(s) {died} ended in the middle of it"
        if any(answers.values()):
            return "failed"
        return None if ended else f"still running after {deadline_s} s"

    def _left(self):
        """Processes that the case has added, after a moment in which they may end."""
        end = time.monotonic() + processes.GRACE_S
        while (added := self._added()) and time.monotonic() < end:
            time.sleep(0.02)
        return f"left processes behind: {added}" if added else None

    def _added(self):
        return {pid: line for pid, line in marked(self.mark).items() if pid not in self.members}

    def _show_stacks(self, answers):
        """Where the ranks are that have not answered, on their standard error."""
        for one, pid, _ in self.channels.values():
            if one not in answers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, rank.SHOW_STACKS)
        if len(answers) < self.ranks:
            time.sleep(0.3)

    def close(self):
        """Let the ranks end by themselves, and see that they do.

        Raises
        ------
        JobFailed
            Naming the last case, if anything is printed, fails or is left behind.
        """
        self._disconnect()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        status = self.process.poll()
        left = end_all(self.mark, 0 if status is None else processes.GRACE_S)
        err = text_of(self.folder, "err")
        self.kill()
        if status or left or err:
            raise JobFailed(
                f"{self.ranks} ranks that have run {self.number} cases, {self.last} the "
                f"last, did not end well: status {status}, left {left}\n{err}"
            )

    def kill(self):
        """End all processes now."""
        self.killed = True
        self._disconnect()
        end_all(self.mark, 0)
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _disconnect(self):
        for connection, (_, _, lines) in self.channels.items():
            lines.close()
            connection.close()


_kept = {}  # (ranks, mpi) -> Launcher, the one used last at the end


def launcher_of(ranks, mpi):
    """The launcher for so many ranks, kept or new; others make room."""
    launcher = _kept.pop((ranks, mpi), None)
    if launcher is None or launcher.killed:
        while _kept and ranks + sum(one.ranks for one in _kept.values()) > MOST_RANKS:
            other = _kept.pop(next(iter(_kept)))
            if not other.killed:
                other.close()
        launcher = Launcher(ranks, mpi)
    _kept[ranks, mpi] = launcher
    return launcher


def end_launchers():
    """Let all kept launchers end.

    Raises
    ------
    ExceptionGroup
        Messages of `JobFailed`, for those that did not end well.
    """
    problems = []
    while _kept:
        _, launcher = _kept.popitem()
        try:
            if not launcher.killed:
                launcher.close()
        except JobFailed as problem:
            problems.append(problem)
    if problems:
        raise ExceptionGroup("launchers did not end well", problems)

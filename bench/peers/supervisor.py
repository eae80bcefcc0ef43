"""Runs the comparison in processes that may die: a peer that crashes or hangs loses its own case, not the run."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import result_file
from progress import Progress

COMPARE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "compare.py")
QUIET = 300.0  # seconds in one engine of one case after which it counts as hung, beside its budget


def _wait(process, progress, limit):
    """Waits for the end, or kills a process whose progress stands still for `limit` seconds. Returns (status, hung)."""
    last, since = None, time.monotonic()
    while True:
        try:
            return process.wait(timeout=1.0), False
        except subprocess.TimeoutExpired:
            pass
        now = progress.stamp()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > limit:
            process.kill()
            return process.wait(), True


def _why(status, hung, limit):
    if hung:
        return f"did not answer for {limit:.0f} seconds"
    try:
        return f"ended the process with {signal.Signals(-status).name}"
    except ValueError:
        return f"ended the process with signal {-status}"


def run_workers(options, path, threads, command=None, limit=None):
    """Starts workers until one comes to the end. Returns its status: 0, or that of a fault which is not a peer's."""
    limit = limit or QUIET + 20 * options.budget
    with tempfile.TemporaryDirectory() as folder:
        where = os.path.join(folder, "progress")
        progress = Progress(where)
        base = command or [sys.executable, COMPARE]
        while True:
            progress.nobody()
            process = subprocess.Popen(
                base
                + [
                    "--worker",
                    where,
                    "--threads",
                    str(threads),
                    "--part",
                    options.part,
                    "--only",
                    options.only,
                    "--engines",
                    options.engines,
                    "--budget",
                    str(options.budget),
                    "--json",
                    path,
                    "--since",
                    options.since,
                ]
                + (["--resume"] if options.resume else [])
            )
            try:
                status, hung = _wait(process, progress, limit)
            except BaseException:  # Ctrl-C: the worker has had it too, and finished cases are in the file
                process.kill()
                process.wait()
                raise
            culprit = progress.read()
            if status >= 0 and not hung:
                return status
            reason = _why(status, hung, limit)
            if culprit is None or not culprit[1]:
                print(f"compare.py: a worker {reason} outside of any engine", file=sys.stderr)
                return 1
            part, case, engine = culprit
            print(f"# {engine} left out of {part} {case}: {reason}; going on without it", flush=True)
            file = result_file.ResultFile(path, resume=options.resume)
            if (part, case, engine) in file.crashed(threads, options.since):
                print(f"compare.py: {engine} is left out of {part} {case} and still {reason}", file=sys.stderr)
                return 1
            file.leave_out(part, case, engine, threads, reason, crash=True)


def run(options, context, summarize):
    """Everything for all numbers of threads. Status 1 when a result of Polyhead was wrong or ended a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.json or os.path.join(folder, "results.json")
        result_file.ResultFile(path, context, options.resume).write()
        for threads in options.counts:
            try:
                status = run_workers(options, path, threads)
            except KeyboardInterrupt:
                kept = (
                    f"finished cases are in {result_file.ResultFile(path, resume=options.resume).target}"
                    if options.json
                    else "nothing is kept"
                )
                again = "; the same command goes on" if options.resume else ""
                print(f"\ncompare.py: interrupted; {kept}{again}", file=sys.stderr)
                return 130
            if status:
                return status
        file = result_file.ResultFile(path, resume=options.resume)
        summarize(file.results)
        file.finish()
        faults = [note for note in file.left_out if note["engine"] == "polyhead" and note["noted"] >= options.since]
        for note in faults:
            print(
                f"compare.py: polyhead, {note['part']} {note['case']}, {note['threads']} threads: {note['reason']}",
                file=sys.stderr,
            )
        return 1 if faults else 0

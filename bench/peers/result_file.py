"""The JSON of compare.py: finished cases are in it at once, so that an interrupted comparison goes on where it stopped."""

import json
import os
import time

# Results measured with different ones of these do not belong under one heading.
IDENTITY = ("cpu", "isa", "limits", "commit", "versions", "budget")


def _case(of):
    return of["part"], of["case"], of["threads"]


def _others(result):
    return result.get("others", 0.0) + result.get("steal", 0.0)


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class ResultFile:
    """With `resume` results gather in PATH.part, which replaces PATH when `finish` says that all are there; a PATH.part of the
    same context is gone on with. Without it they go into PATH, where results of other cases and of the same context stay.
    Without a `context` the file's own is kept."""

    def __init__(self, path, context=None, resume=False, since=""):
        self.since = since  # results of before are of another run
        self.path, self.context, self.resume = path, context, resume
        self.target = path + ".part" if resume else path
        self.results, self.left_out = [], []
        if not os.path.exists(self.target):
            return
        with open(self.target) as file:
            document = json.load(file)
        known = document["context"]
        differences = [name for name in IDENTITY if context and known.get(name) != context.get(name)]
        if not differences:
            self.results, self.left_out = document["results"], document.get("left_out", [])
            self.context = {**(context or known), **({"started": known["started"]} if resume else {})}
        elif not resume:
            raise SystemExit(f"{path}: has results with another {', '.join(differences)}: give --json another file")

    def done(self, since=""):
        """(part, case, threads) measured then or later."""
        return {
            (result["part"], result["case"], result["threads"])
            for result in self.results
            if result.get("measured", "") >= since
        }

    def crashed(self, threads, since=""):
        """(part, case, engine) that ended a process with this number of threads, then or later."""
        return {
            (note["part"], note["case"], note["engine"])
            for note in self.left_out
            if note.get("crash") and note["threads"] == threads and note["noted"] >= since
        }

    def disturbed(self, most):
        """(part, case, threads) during which others had more than `most` of the CPUs' time, and that were measured once only."""
        return {_case(result) for result in self.results if _others(result) > most and result.get("tries", 1) == 1}

    def add(self, results):
        """One case's results. They take the place of what was known of it, unless others disturbed them more."""
        measured = {_case(result) for result in results}
        before = [result for result in self.results if _case(result) in measured]
        tries = 1 + max((result.get("tries", 1) for result in before if result.get("measured", "") >= self.since), default=0)
        if tries > 1 and max(map(_others, results)) > max(map(_others, before)):
            results = before
        results = [{**result, "tries": tries} for result in results]
        engines = {(*_case(result), result["engine"].partition("+")[0].partition("-")[0]) for result in results}
        self.results = [result for result in self.results if _case(result) not in measured] + results
        self.left_out = [note for note in self.left_out if (*_case(note), note["engine"]) not in engines]
        self.write()

    def leave_out(self, part, case, engine, threads, reason, crash=False):
        key = (part, case, engine, threads)
        self.left_out = [note for note in self.left_out if (note["part"], note["case"], note["engine"], note["threads"]) != key]
        note = {"part": part, "case": case, "engine": engine, "threads": threads, "reason": reason, "noted": now()}
        self.left_out.append({**note, "crash": True} if crash else note)
        self.write()

    def write(self, complete=False):
        document = {
            "context": self.context,
            "complete": complete or not self.resume,
            "results": self.results,
            "left_out": self.left_out,
        }
        os.makedirs(os.path.dirname(os.path.abspath(self.target)), exist_ok=True)
        with open(self.target + ".new", "w") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
        os.replace(self.target + ".new", self.target)

    def finish(self):
        self.write(complete=True)
        if self.resume:
            os.replace(self.target, self.path)

"""python3 -m polyhead_perf COMMAND ...: finds the command, turns its errors into one line and status 2."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback

from .errors import PerfError

# Each command's module, imported only when the command is given, so that none needs another's libraries. It has
# `main(arguments: list[str], program: str) -> int`, which returns the exit status.
COMMANDS = {
    "compare": ("compare", "which of two builds, or of two result files, is faster"),
    "report": ("report", "one HTML page from a folder of result files"),
    "self-test": ("self_test", "how often compare is right: one build against itself, and against a slowed one"),
    "instructions": ("instructions", "instruction counts of kernels against the recorded ones"),
}
STATUS_ERROR = 2
DEBIAN = {library: f"apt-get install python3-{library} on Debian, " for library in ("numpy", "scipy", "plotly")}


def usage() -> str:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["usage: python3 -m polyhead_perf COMMAND ...   (COMMAND --help says more)", "", *lines, ""])


def fail(program: str, message: object) -> int:
    print(f"{program}:", " ".join(str(message).split()), file=sys.stderr)
    return STATUS_ERROR


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(), end="", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else STATUS_ERROR
    name = arguments[0]
    if name not in COMMANDS:
        return fail("polyhead_perf", f"no command is called '{name}'; there are {', '.join(COMMANDS)}")
    if sys.version_info < (3, 9):
        return fail("polyhead_perf", f"needs Python 3.9 or later; {sys.executable} is {sys.version.split()[0]}")
    # The polyhead command names itself here, so that help and errors show what the user typed.
    program = f"{os.environ.get('POLYHEAD_PERF_PROGRAM', 'polyhead_perf')} {name}"
    if sys.stdout is None:  # closed by who started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # pylint: disable=consider-using-with
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files and benchmarks may be what this terminal can't show
    try:
        status = importlib.import_module(f".{COMMANDS[name][0]}", __package__).main(arguments[1:], program)
        sys.stdout.flush()
        return status
    except PerfError as error:
        return fail(program, error)
    except ModuleNotFoundError as error:
        library = (error.name or "").split(".")[0]
        if library == __package__ or not library:
            traceback.print_exc()
            return fail(program, "the package polyhead_perf is incomplete: install Polyhead again")
        return fail(program, f"needs the Python library {library}, which {sys.executable} doesn't have: "
                    f"pip install 'polyhead[perf]' in a virtual environment, {DEBIAN.get(library, '')}"
                    "or set POLYHEAD_PYTHON to a Python that has it")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # who read our output is gone: nothing to flush into
        return STATUS_ERROR
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT):
            traceback.print_exc()
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # what is left in it can't be flushed either
        return fail(program, f"can't write: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    except Exception:  # pylint: disable=broad-except
        # Python's own status for this is 1, which would say "slower".
        traceback.print_exc()
        return fail(program, "a fault of this program; the lines above say where")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

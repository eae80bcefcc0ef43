"""JSON from files that others wrote: whatever cannot be read is a PerfError of one line. Standard library alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

from .errors import PerfError


LARGEST = 1e100  # beyond anything measured, and far enough from overflow for products and quotients


def number(value) -> float | None:
    """A number of JSON, infinite where it is too large; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def read(path, source: str | None = None):
    """The document in the file `path`; `source` is what errors call it. PerfError when there is none, or none that could be worked
    with and written out again."""
    path, source = Path(path), source or str(path)
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise PerfError(f"{source}: can't be read: it is {'a folder' if path.is_dir() else 'not a file'}")
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))  # takes NaN: who knows the field's name refuses it
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise PerfError(f"{source}: is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise PerfError(f"{source}: can't be read: it is not UTF-8 text") from None
    except UnicodeEncodeError:
        raise PerfError(f"{source}: is not JSON of a result: a text has half of a character (a lone surrogate)") from None
    except RecursionError:
        raise PerfError(f"{source}: is not JSON of a result: it is nested too deeply") from None
    except OSError as error:
        raise PerfError(f"{source}: can't be read: {error.strerror}") from None
    except ValueError as error:  # numbers of thousands of digits
        raise PerfError(f"{source}: is not JSON of a result: {str(error).split(';', maxsplit=1)[0]}") from None
    return document

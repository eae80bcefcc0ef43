"""What Polyhead runs on: info()."""

import pathlib
import platform

from . import _polyhead


def info() -> dict:
    """What this process's Polyhead is and runs on.

    Keys: version; cpu (model name); isa (in use) and available_isas, plainest first; threads; caches, a list of
    {"level", "type", "bytes"} of the first CPU, empty where the system does not tell; description, the same for people.
    """
    return {**_polyhead._info(), "cpu": _cpu_name(), "caches": _caches()}


def _cpu_name() -> str:
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _caches() -> list:
    caches = []
    for folder in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / field).read_text().strip() for field in ("level", "type", "size"))
        except OSError:
            continue
        units = {"K": 2**10, "M": 2**20, "G": 2**30}
        number = int(size.rstrip("KMG")) * units.get(size[-1:], 1)
        caches.append({"level": int(level), "type": kind.lower(), "bytes": number})
    return caches

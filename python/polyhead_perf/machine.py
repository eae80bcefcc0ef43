"""What disturbs measurements on this machine: which CPU to stay on, how busy the others keep it, its frequency governor."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# Shares of the machine's CPU time from which a comparison is worth a warning.
BUSY_SHARE = 0.10
STOLEN_SHARE = 0.02
CPUFREQ = Path("/sys/devices/system/cpu")


def allowed_cpus() -> list:
    """CPUs that this process may run on; empty where the system can't tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def governor() -> str | None:
    """The frequency governor of the allowed CPUs, several joined by commas; None where the system has none to set, as in most
    virtual machines."""
    names = set()
    for cpu in allowed_cpus():
        try:
            names.add((CPUFREQ / f"cpu{cpu}/cpufreq/scaling_governor").read_text().strip())
        except OSError:
            pass
    return ",".join(sorted(names)) or None


@dataclass(frozen=True)
class CpuTime:
    """CPU time of the whole machine since it started, and of this process's finished children, in seconds."""

    total: float
    busy: float
    stolen: float  # given to other virtual machines while ours wanted to run
    ours: float

    @staticmethod
    def now() -> CpuTime | None:
        """None where there is no /proc/stat."""
        try:
            fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        except (OSError, ValueError):
            return None
        user, nice, system, idle, waiting, interrupt, soft_interrupt, stolen = (fields + [0] * 8)[:8]
        tick = 1 / os.sysconf("SC_CLK_TCK")
        busy = user + nice + system + interrupt + soft_interrupt
        times = os.times()
        return CpuTime(tick * (busy + idle + waiting + stolen), tick * busy, tick * stolen,
                       times.children_user + times.children_system + times.user + times.system)


@dataclass(frozen=True)
class Disturbance:
    """Shares of the machine's CPU time between two moments."""

    others: float
    stolen: float

    @staticmethod
    def between(start: CpuTime | None, end: CpuTime | None) -> Disturbance:
        if start is None or end is None or end.total <= start.total:
            return Disturbance(0.0, 0.0)
        passed = end.total - start.total
        others = max(0.0, (end.busy - start.busy) - (end.ours - start.ours))
        return Disturbance(others / passed, (end.stolen - start.stolen) / passed)


def warnings_before(seconds: float = 0.3) -> list:
    """What to tell the user before measuring; looks at the machine for that long."""
    start = CpuTime.now()
    time.sleep(seconds)
    disturbance = Disturbance.between(start, CpuTime.now())
    warnings = []
    if disturbance.others > BUSY_SHARE:
        warnings.append(f"other programs use {disturbance.others:.0%} of this machine's CPU time; stop them for narrower intervals")
    set_governor = governor()
    if set_governor not in (None, "performance"):
        warnings.append(f"the CPU frequency governor is '{set_governor}', so clocks vary with load; "
                        "'performance' holds them: cpupower frequency-set -g performance")
    return warnings


def warnings_after(disturbance: Disturbance) -> list:
    warnings = []
    if disturbance.others > BUSY_SHARE:
        warnings.append(f"while measuring, other programs used {disturbance.others:.0%} of this machine's CPU time")
    if disturbance.stolen > STOLEN_SHARE:
        warnings.append(f"while measuring, the virtual machine's host kept back {disturbance.stolen:.0%} of the CPU time")
    return warnings

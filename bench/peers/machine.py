"""What the machine is and how busy it is; Linux only, as the peers' packages are."""

import os
import re
import time


def _read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def cpu_name(cpuinfo=None):
    """What the CPU calls itself, with family and model where that names no product, as on a virtual machine."""
    cpuinfo = _read("/proc/cpuinfo") if cpuinfo is None else cpuinfo

    def said(key):
        found = re.search(rf"^{key}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
        return found and found[1].strip()

    name = said("model name")
    if not name:
        return "unknown CPU"
    names_product = re.search(r"\d", name.partition("@")[0])
    if names_product or not said("cpu family"):
        return name
    return f"{name}, family {said('cpu family')} model {said('model')}"


def one_cpu_a_core(allowed=None, siblings_of=None):
    """The CPUs that this process may use, one of each core before any core's second."""
    allowed = sorted(os.sched_getaffinity(0)) if allowed is None else sorted(allowed)
    siblings_of = siblings_of or (
        lambda cpu: _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip() or str(cpu)
    )
    seen, first, others = set(), [], []
    for cpu in allowed:
        core = siblings_of(cpu)
        (others if core in seen else first).append(cpu)
        seen.add(core)
    return first + others


def pin(threads):
    """Keeps this process on as many CPUs as it has threads: a scheduler would move the work about. Returns them."""
    cpus = sorted(one_cpu_a_core()[:threads])
    if len(cpus) < threads:
        raise SystemExit(f"--threads {threads}: this process may use {len(cpus)} CPUs only")
    os.sched_setaffinity(0, cpus)
    return cpus


def governor():
    return _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or "unknown"


def _ticks(cpus):
    """Fields of /proc/stat, summed over these CPUs: user, nice, system, idle, iowait, irq, softirq, steal."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    lines = [line.split()[1:9] for line in _read("/proc/stat").splitlines() if line.split()[0] in wanted]
    return [sum(map(int, column)) for column in zip(*lines)] or [0] * 8


class Load:
    """Who else used our CPUs between two moments."""

    def __init__(self, cpus):
        self.cpus = cpus
        self.start = (time.monotonic(), _ticks(cpus), sum(os.times()[:2]))

    def read(self):
        """{"others": share of the CPUs' time that other programs had, "steal": that other virtual machines had}"""
        elapsed = (time.monotonic() - self.start[0]) * len(self.cpus)
        spent = [(after - before) / os.sysconf("SC_CLK_TCK") for before, after in zip(self.start[1], _ticks(self.cpus))]
        used = sum(spent) - spent[3] - spent[4] - spent[7]
        ours = sum(os.times()[:2]) - self.start[2]
        share = lambda seconds: round(min(max(seconds / elapsed, 0.0), 1.0), 4)
        return {"others": share(used - ours), "steal": share(spent[7])}

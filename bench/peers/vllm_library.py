"""Which of the vLLM wheel's kernel libraries runs on this CPU.

The wheel has libraries for several instruction sets, and the wrong one ends a process with an illegal instruction, some only when
a kernel is called. So each is tried in a process of its own, on a small attention whose result is checked.
"""

import glob
import os
import subprocess
import sys
import sysconfig

VARIABLE = "POLYHEAD_VLLM_LIBRARY"  # the library found, for the processes that measure


def candidates():
    """The plain library, which needs the most, then AVX-512's before AVX2's."""
    folder = os.path.join(sysconfig.get_path("platlib"), "vllm")
    width = lambda path: int("".join(filter(str.isdigit, os.path.basename(path).partition(".")[0])) or sys.maxsize)
    return sorted(glob.glob(os.path.join(folder, "_C*.abi3.so")), key=width, reverse=True)


def has_tiles():
    """Whether this process may use AMX, which vLLM's kernels then want to be told."""
    import torch

    return torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def find(paths=None, command=None):
    """Returns (path, notes): the first that works, or None; notes say what happened to those before it."""
    notes = []
    for path in candidates() if paths is None else paths:
        try:
            tried = subprocess.run(
                (command or [sys.executable, os.path.abspath(__file__)]) + [path], capture_output=True, text=True, timeout=180
            )
        except subprocess.TimeoutExpired:
            notes.append(f"{os.path.basename(path)} does not answer")
            continue
        if tried.returncode == 0:
            return path, notes
        last = (tried.stderr.strip().splitlines() or ["no message"])[-1]
        ended = f"ends with signal {-tried.returncode}" if tried.returncode < 0 else f"fails: {last}"
        notes.append(f"{os.path.basename(path)} {ended}")
    return None, notes or ["vllm is not installed"]


def main(path):
    os.environ[VARIABLE] = path
    import attention

    case = attention.Case("trial", 2, 2, 1, 8, 200, 64, 64, causal=False)
    _, result = attention.vllm_engine(case, 1)["vllm"]
    error = case.error_of(result(), case.reference())
    if not error <= attention.LARGEST_ERROR["f32"]:
        sys.exit(f"wrong result, error {error:.1e}")


if __name__ == "__main__":
    main(sys.argv[1])

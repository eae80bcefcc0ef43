#!/usr/bin/env python3
"""Strips copies of files and compares their sizes with a limit in bytes: stripped_size.py --at-most N FILE...

An archive counts as its members linked into one object: each has its own copy of an inline function and of the names they share,
of which a program gets one.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile


def stripped_size(path, strip, linker):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        if path.suffix == ".a":
            copy = copy.with_suffix(".o")
            subprocess.run([linker, "-r", "-o", str(copy), "--whole-archive", str(path)], check=True)
        else:
            shutil.copyfile(path, copy)
        options = ["--strip-unneeded"] if copy.suffix == ".o" else []  # an object keeps the symbols that a linker needs
        subprocess.run([strip, *options, str(copy)], check=True)
        return copy.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-most", type=int, required=True)
    parser.add_argument("--strip", default="strip")
    parser.add_argument("--linker", default="ld")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    failed = False
    for path in arguments.files:
        size = stripped_size(path, arguments.strip, arguments.linker)
        failed |= size > arguments.at_most
        print(f"{path.name}: {size / 1e6:.3f} MB stripped, at most {arguments.at_most / 1e6:.3f} MB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

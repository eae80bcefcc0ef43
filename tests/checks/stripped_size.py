#!/usr/bin/env python3
"""Strips copies of files and compares their sizes with a limit in bytes: stripped_size.py --at-most N FILE...

An archive counts as all of it linked into one shared object, which is what it can add to a program: its members each have their
own copies of inline functions, and names and relocations that the linker uses up.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile


def stripped_size(path, strip, compiler):
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        if path.suffix == ".a":
            copy = copy.with_suffix(".so")
            whole = ["-Wl,--whole-archive", str(path), "-Wl,--no-whole-archive"]
            subprocess.run([compiler, "-shared", "-o", str(copy), *whole], check=True)
        else:
            shutil.copyfile(path, copy)
        subprocess.run([strip, str(copy)], check=True)
        return copy.stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-most", type=int, required=True)
    parser.add_argument("--strip", default="strip")
    parser.add_argument("--compiler", default="c++", help="which links archives")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    failed = False
    for path in arguments.files:
        size = stripped_size(path, arguments.strip, arguments.compiler)
        failed |= size > arguments.at_most
        print(f"{path.name}: {size / 1e6:.3f} MB stripped, at most {arguments.at_most / 1e6:.3f} MB")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

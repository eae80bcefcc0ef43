"""polyhead report: one HTML page from a folder of result files."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from pathlib import Path

from . import report_inputs, report_page
from .errors import PerfError


def plotly_script():
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def version_of_package():
    import importlib.metadata

    try:
        return importlib.metadata.version("polyhead")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        return "from sources"


def arguments_of(arguments, program):
    parser = argparse.ArgumentParser(
        prog=program,
        description=(
            "Makes one self-contained HTML page of the result files in a folder: speed beside other engines, rooflines, "
            "time lines with change points, and a table that sorts and filters."
        ),
        epilog=(
            "Files are those of polyhead-bench (--benchmark_out), polyhead bench (--json) and scripts/peers; several of one"
            " machine make a history. Other files are named and left out; a damaged one is an error (status 2)."
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="where the .json files are")
    parser.add_argument("-o", "--output", metavar="PAGE", default="report.html", help="the page to write (report.html)")
    parser.add_argument("--title", default="Polyhead performance", help="the page's heading")
    return parser.parse_args(arguments)


def main(arguments, program):
    options = arguments_of(arguments, program)
    inputs = report_inputs.read_folder(options.folder)
    for warning in inputs.warnings:
        print(f"{program}: warning: {os.path.join(options.folder, warning)}", file=sys.stderr)
    page = report_page.build(
        inputs, options.title, datetime.datetime.now(datetime.timezone.utc), version_of_package(), plotly_script()
    )
    output = Path(options.output)
    part = output.with_name(output.name + ".part")
    try:
        part.write_text(page, encoding="utf-8")
        os.replace(part, output)
    except OSError as error:
        raise PerfError(f"{output}: can't be written: {error.strerror}") from None
    print(
        f"{output}: {report_page.plural(len(inputs.runs), 'result file')},"
        f" {report_page.plural(len(inputs.newest()), 'result')}, {output.stat().st_size / 1e6:.1f} MB"
    )
    return 0

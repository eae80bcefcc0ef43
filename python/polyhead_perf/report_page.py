"""The page: one HTML file that needs nothing else. Texts of result files are data here: escaped in HTML, JSON to the script.

A Content-Security-Policy in the page admits only the two scripts that it was made with, by their hashes, and no connection at
all: should a text ever slip through the escaping, it still can neither run nor call home.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import string
from pathlib import Path

from . import report_charts
from .report_charts import iso
from .report_peers import OURS

PAGE = Path(__file__).parent / "page"


# One program in parts, in this order.
SCRIPTS = ("numbers", "filters", "plotting", "ratios", "rooflines", "timelines", "sweeps", "panels", "table", "events")


def page_script():
    parts = [(PAGE / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def text(value):
    return html.escape(str(value), quote=True)


def _json(value):
    """For a script element: no character sequence in it can end the element."""
    return (
        json.dumps(value, allow_nan=False, separators=(",", ":"))
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def three_digits(value):
    """Three significant digits without an exponent, as a person writes them."""
    digits = f"{value:.3g}"
    if "e" in digits:
        return f"{value:.0f}" if value >= 1 else f"{value:.1e}"
    return digits


def duration(seconds):
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{three_digits(seconds / scale)} {'µs' if unit == 'us' else unit}"
    return f"{three_digits(seconds * 1e9)} ns"


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def percent(change):
    return f"{change * 100:+.1f}".replace("-", "\u2212") + " %"


# ---- the table of results

COLUMNS = (  # key, heading, kind of value
    ("name", "Benchmark", "text"),
    ("engine", "Engine", "text"),
    ("machine", "Machine", "text"),
    ("isa", "ISA", "text"),
    ("threads", "Threads", "number"),
    ("seconds", "Time", "number"),
    ("gflops", "GFLOP/s", "number"),
    ("gbps", "GB/s", "number"),
    ("share", "Of its bound", "number"),
    ("error", "Error", "number"),
    ("change", "Last change", "number"),
    ("date", "Measured", "text"),
)


def _cell(key, heading, kind, content, value=None):
    classes = " ".join(
        filter(
            None,
            [
                "name" if key == "name" else "",
                "number" if kind == "number" and key != "share" else "",
                "broad" if key in ("machine", "share", "date") else "",
            ],
        )
    )
    sort = "" if value is None else f' data-value="{text(value)}"'
    return f'<td role="cell" class="{classes}" data-label="{heading}"{sort}>{content}</td>'


def _row(index, result, change, shown):
    run = result.run
    commit = f' <span class="muted">{text(run.commit)}</span>' if run.commit else ""
    share = ""
    if result.share is not None:
        width = min(max(result.share, 0.0), 1.0) * 100
        share = (
            f'<span class="meter" aria-hidden="true"><span style="width:{width:.0f}%"></span></span>{result.share * 100:.0f} %'
            + (f' <span class="muted">{text(result.bound)}</span>' if result.bound else "")
        )
    moved = ""
    if change is not None:
        kind = "slower" if change["change"] > 0 else "faster"
        moved = f'<span class="{kind}">{percent(change["change"])} {kind}</span>'
    time = f'<span class="problem">{text(result.problem)}</span>' if result.problem else duration(result.seconds)
    contents = {
        "name": (text(result.name), result.name),
        "engine": (text(result.engine), result.engine),
        "machine": (text(run.machine), run.machine),
        "isa": (text(result.isa), result.isa),
        "threads": (result.threads, result.threads),
        "seconds": (time, result.seconds),
        "gflops": ("" if result.gflops is None else three_digits(result.gflops), result.gflops),
        "gbps": ("" if result.gbps is None else three_digits(result.gbps), result.gbps),
        "share": (share, result.share),
        "error": ("" if result.error is None else f"{result.error:.1e}", result.error),
        "change": (moved, change["change"] if change else None),
        "date": (f'<time datetime="{iso(run.date)}">{run.date:%Y-%m-%d}</time>{commit}', iso(run.date)),
    }
    cells = "".join(_cell(key, heading, kind, *contents[key]) for key, heading, kind in COLUMNS if key in shown)
    return f'<tr role="row" data-row="{index}">{cells}</tr>'


def _table(results, changes):
    has = {
        "engine": any(result.engine != "Polyhead" for result in results),
        "machine": len({result.run.machine for result in results}) > 1,
        "isa": any(result.isa for result in results),
        "gbps": any(result.gbps for result in results),
        "share": any(result.share is not None for result in results),
        "error": any(result.error is not None for result in results),
        "change": any(changes.get(result.series) for result in results),
    }
    shown = [key for key, _, _ in COLUMNS if has.get(key, True)]
    heads = "".join(
        f'<th role="columnheader" scope="col" class="{"number" if kind == "number" and key != "share" else ""}"'
        f' aria-sort="none"><button type="button" data-sort="{key}" data-kind="{kind}">{heading}</button></th>'
        for key, heading, kind in COLUMNS
        if key in shown
    )
    options = "".join(f'<option value="{key}">{heading}</option>' for key, heading, _ in COLUMNS if key in shown)
    rows = "\n".join(_row(index, result, changes.get(result.series), shown) for index, result in enumerate(results))
    return f"""<div class="sorter"><label>Sort by<select id="sort-by">{options}</select></label>
<button type="button" id="sort-direction" aria-label="Reverse the order">&#8597; Reverse</button></div>
<table role="table" class="cards" id="table"><caption class="skip">Newest result of every benchmark</caption>
<thead role="rowgroup"><tr role="row">{heads}</tr></thead>
<tbody role="rowgroup">
{rows}
</tbody></table>
<p class="empty" id="table-empty" hidden>No result matches these filters.</p>
<button type="button" class="more" id="table-more" hidden></button>"""


# ---- the other sections


def _section(name, heading, explanation, body):
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading"><h2'
        f' id="{name}-heading">{heading}</h2>\n<p>{explanation}</p>\n{body}</section>'
    )


def _panel(kind, index, heading, label, before):
    """A chart's frame. `label` tells the chart to those who cannot see it."""
    return (
        f'<figure class="panel" data-panel="{kind}" data-index="{index}"><h3>{heading}</h3>{before}'
        f'<div class="chart" role="img" aria-label="{text(label)}"></div></figure>'
    )


def _ratios(panels):
    if not panels:
        return ""
    framed = []
    for index, panel in enumerate(panels):
        about = (
            f'least {panel["least"][1]:.2f} ({panel["least"][0]}), most {panel["most"][1]:.2f} ({panel["most"][0]}), '
            f'{plural(len(panel["cases"]), "case")}'
        )
        before = (
            f'<p class="figure">{panel["mean"]:.2f}&times; the best peer</p>'
            f'<p>{text(panel["machine"])} {text(panel["isa"])}, {panel["date"]}: {text(about)}</p>'
        )
        label = (
            f'{panel["title"]} with {plural(panel["threads"], "thread")}: geometric mean {panel["mean"]:.2f} times the best'
            f" peer; {about}. Every value is in the table of results."
        )
        framed.append(_panel("ratio", index, f'{text(panel["title"])}, {plural(panel["threads"], "thread")}', label, before))
    return _section(
        "peers",
        "Beside other engines",
        "Speed of each engine relative to the fastest engine other than Polyhead, which is 1; further right is faster. All are"
        " timed in turn in one process, each result checked against float64 first. The dashed line is the geometric mean.",
        '<ul class="legend" id="engine-legend"></ul><div class="panels">' + "\n".join(framed) + "</div>",
    )


def _rooflines(panels):
    if not panels:
        return ""
    framed = []
    for index, panel in enumerate(panels):
        with_roofs = (
            f'{plural(len(panel["roofs"]), "measured roof")}: '
            + ", ".join(
                f'{roof["name"]} {three_digits(roof["rate"])} {"GB/s" if roof["kind"] == "read" else "GFLOP/s"}'
                for roof in panel["roofs"]
            )
            if panel["roofs"]
            else "no roofs: measure with --roofline"
        )
        before = f'<p>{text(panel["dates"])}; {text(with_roofs)}</p>'
        framed.append(
            _panel(
                "roofline",
                index,
                f'{text(panel["machine"])}, {plural(panel["threads"], "thread")}',
                f'Roofline plot of {plural(len(panel["points"]), "benchmark")}; {with_roofs}. Every value is in the table.',
                before,
            )
        )
    return _section(
        "roofline",
        "How near the machine's limits",
        "Operations a second against operations a byte (operands and results counted once). Flat lines are what the arithmetic"
        " units do, slanted ones what can be read from a level of memory, both measured in the same run. On a line there is"
        " nothing left to gain from better code. The strip below each shows the share of its bound that each benchmark"
        " reaches.",
        '<ul class="legend" id="group-legend"></ul><div class="panels">' + "\n".join(framed) + "</div>",
    )


def _sweeps(panels):
    if not panels:
        return ""
    framed = []
    for index, panel in enumerate(panels):
        points = panel["points"]
        cliffs = [point for point in points if point["cliff"] is not None]
        found = f'{plural(len(cliffs), "cliff")}: {", ".join(str(round(point["size"])) for point in cliffs)}' if cliffs else "no cliff"
        before = (
            f'<p>{text(panel["held"])}; {text(panel["machine"])} {text(panel["isa"])}, {plural(panel["threads"], "thread")},'
            f' {panel["date"]}; <span class="{"slower" if cliffs else ""}">{text(found)}</span></p>'
        )
        label = (
            f'Times of {plural(len(points), "size")}, {round(points[0]["size"])} to {round(points[-1]["size"])} {panel["unit"]}'
            f' ({panel["held"]}): {duration(points[0]["ms"] / 1e3)} to {duration(points[-1]["ms"] / 1e3)}, {found}'
        )
        framed.append(_panel("sweep", index, text(panel["family"]), label, before))
    return _section(
        "sizes",
        "Over sizes",
        "Time as one size grows and all others stay, by polyhead-sweep. Red marks are cliffs: sizes that take longer than a larger"
        " one, or much longer than the one before.",
        '<div class="panels small">' + "\n".join(framed) + "</div>",
    )


def _timelines(lines):
    if not lines:
        return ""
    changed = sum(bool(line["changes"]) for line in lines)
    found = (
        f"{plural(changed, 'series').replace('seriess', 'series')} of {len(lines)} changed"
        if changed
        else f"No change in {plural(len(lines), 'series').replace('seriess', 'series')}"
    )
    names = ("Benchmark", "Where", "Since", "Level", "Change")
    rows = []
    for line in lines:
        for change in line["changes"]:
            point = line["points"][change["index"]]
            kind = "slower" if change["change"] > 0 else "faster"
            where = [line["engine"], line["isa"], plural(line["threads"], "thread"), line["machine"]]
            contents = (
                text(line["name"]),
                text(", ".join(filter(None, where))),
                f'{point["date"][:10]} <span class="muted">{text(point["commit"])}</span>',
                f'{duration(change["before"] / 1e3)} &rarr; {duration(change["after"] / 1e3)}',
                f'<span class="{kind}">{percent(change["change"])} {kind}</span>',
            )
            classes = ("name", "broad", "", "", "")
            cells = (
                f'<td role="cell" class="{of}" data-label="{name}">{content}</td>'
                for of, name, content in zip(classes, names, contents)
            )
            rows.append('<tr role="row">' + "".join(cells) + "</tr>")
    table = ""
    if rows:
        heads = "".join(f'<th role="columnheader" class="plain" scope="col">{name}</th>' for name in names)
        table = (
            f"<details><summary>All change points ({len(rows)})</summary>"
            f'<table role="table" class="cards"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>'
            f'<tbody role="rowgroup">{"".join(rows)}</tbody></table></details>'
        )
    return _section(
        "history",
        "Over time",
        f"{found}: a change is a move of the level by more than 3 % that also exceeds the series' own noise. Dots are runs,"
        " lines are levels, bars the middle half of repetitions. Series with the largest changes come first; filter for"
        " others.",
        '<label class="spacing">Horizontal axis <select id="spacing"><option value="run">equal steps, one a'
        ' run</option><option value="date">dates</option></select></label><div class="panels small" id="timelines"></div><p'
        ' class="empty" id="timelines-empty" hidden>No series matches these filters.</p><button type="button" class="more"'
        f' id="timelines-more" hidden></button>{table}',
    )


def _context_rows(context):
    for key, value in context.items():
        if isinstance(value, dict):
            value = ", ".join(f"{name} {of}" for name, of in value.items())
        elif isinstance(value, list):
            value = ", ".join(
                " ".join(f"{name} {of}" for name, of in item.items()) if isinstance(item, dict) else str(item) for item in value
            )
        yield f"<dt>{text(key)}</dt><dd>{text(value)}</dd>"


def _runs(runs):
    blocks = []
    for index, run in reversed(list(enumerate(runs))):
        caution = "".join(f' <span class="badge slower">{text(what)}</span>' for what in run.doubts + run.cautions)
        summary = f"{run.date:%Y-%m-%d %H:%M} &middot; {text(run.machine)} &middot; {text(run.file)}{caution}"
        rows = "".join(_context_rows(run.context))
        if run.peers is not None and run.peers.left_out:
            notes = "; ".join(
                " ".join(str(part) for part in note.values()) if isinstance(note, dict) else str(note)
                for note in run.peers.left_out
            )
            rows += f"<dt>left out</dt><dd>{text(notes)}</dd>"
        blocks.append(f'<details{" open" if len(runs) == 1 else ""}><summary>{summary}</summary><dl>{rows}</dl></details>')
    return _section(
        "runs",
        "Runs",
        "Where every number comes from: the context that each result file states, newest first.",
        "\n".join(blocks),
    )


def _select(name, label, values, describe=str):
    if len(values) < 2:
        return ""
    options = "".join(f'<option value="{text(value)}">{text(describe(value))}</option>' for value in values)
    return (
        f'<label>{label}<select id="filter-{name}" data-filter="{name}"><option value="">all</option>{options}</select></label>'
    )


def _lead(inputs, newest, panels, lines, sweeps):
    """One sentence of what is seen."""
    machines = sorted({run.machine for run in inputs.runs})
    where = machines[0] if len(machines) == 1 else f"{len(machines)} kinds of machine"
    parts = []
    attention = [panel for panel in panels if panel["part"] == "attention"]
    if attention:
        shown = sorted(attention, key=lambda panel: (panel["threads"], panel["machine"]))
        if len({(panel["machine"], panel["isa"]) for panel in attention}) == 1 == len(machines):
            parts.append(
                "attention runs at "
                + " and ".join(
                    f'<strong>{panel["mean"]:.2f}&times;</strong> the best peer with {plural(panel["threads"], "thread")}'
                    for panel in shown
                )
            )
        else:
            means = [panel["mean"] for panel in shown]
            parts.append(
                f"attention runs at <strong>{min(means):.2f}&times;</strong> to <strong>{max(means):.2f}&times;</strong> the"
                " best peer"
            )
    shares = [result.share for result in newest if result.share is not None and result.group != report_charts.PEAK_GROUP]
    if shares:
        shares.sort()
        parts.append(
            f'half of {plural(len(shares), "benchmark")} reach <strong>{shares[len(shares) // 2] * 100:.0f} %</strong> or more'
            " of what the machine allows"
        )
    wrong = sum(result.problem is not None for result in newest)
    if wrong:
        parts.append(f'<strong class="slower">{plural(wrong, "benchmark")} gave no result</strong>')
    if lines:
        slower = sum(bool(line["changes"]) and line["changes"][-1]["change"] > 0 for line in lines)
        faster = sum(bool(line["changes"]) and line["changes"][-1]["change"] < 0 for line in lines)
        if slower or faster:
            parts.append(
                f"at the last change <strong>{slower}</strong> of {len(lines)} series became slower and"
                f" <strong>{faster}</strong> faster"
            )
        else:
            parts.append(f"none of {len(lines)} series changed its level")
    if sweeps:
        cliffs = sum(point["cliff"] is not None for panel in sweeps for point in panel["points"])
        sizes = sum(len(panel["points"]) for panel in sweeps)
        parts.append(f"of {plural(sizes, 'size')} in {plural(len(sweeps), 'sweep')} <strong>{cliffs or 'none'}</strong> "
                     + ("is a cliff" if cliffs <= 1 else "are cliffs"))
    if not parts:
        parts.append(f"{plural(len(newest), 'benchmark')} measured")
    return f"On {text(where)}, " + "; ".join(parts) + "."


def _hash(source):
    return "'sha256-" + base64.b64encode(hashlib.sha256(source.encode("utf-8")).digest()).decode() + "'"


def build(inputs, title, made, version, plotly_source):
    """The whole page as text. made: when, a datetime. plotly_source: plotly's JavaScript."""
    everything = inputs.newest()
    newest = [result for result in everything if not report_charts.is_sweep(result)]
    index_of = {id(result): index for index, result in enumerate(newest)}
    panels = report_charts.ratio_panels(inputs)
    rooflines = report_charts.roofline_panels(inputs, index_of)
    lines = report_charts.timelines(inputs)
    sweeps = report_charts.sweep_panels(inputs)
    changes = {
        (line["machine"], line["engine"], line["name"], line["isa"], line["threads"]): line["changes"][-1]
        for line in lines
        if line["changes"]
    }
    data = {
        "rows": [
            {
                "name": result.name,
                "group": result.group,
                "engine": result.engine,
                "machine": result.run.machine,
                "isa": result.isa,
                "threads": result.threads,
                "ms": None if result.seconds is None else result.seconds * 1e3,
                "gflops": result.gflops,
                "gbps": result.gbps,
                "share": result.share,
                "roof": result.roof,
                "bound": result.bound,
                "commit": result.run.commit or "",
                "date": result.run.date.strftime("%Y-%m-%d"),
                "problem": result.problem,
            }
            for result in newest
        ],
        "ratios": panels,
        "rooflines": rooflines,
        "lines": lines,
        "sweeps": sweeps,
        "ours": OURS,
    }
    unique = lambda values: sorted(
        {value for value in values if value != ""}, key=lambda value: (not isinstance(value, int), value)
    )
    filters = "".join(
        [
            _select("machine", "Machine", unique(result.run.machine for result in everything)),
            _select("group", "Benchmark", unique(result.group for result in newest)),
            _select("isa", "ISA", unique(result.isa for result in everything)),
            _select("threads", "Threads", unique(result.threads for result in everything), lambda count: plural(count, "thread")),
        ]
    )
    results = _section(
        "results",
        "Results",
        "The newest result of every benchmark, by the wall; click a heading to sort. An error counter is the "
        "largest difference from a float64 reference.",
        _table(newest, changes),
    )
    shown = {id(result.run) for result in everything}
    notices = "".join(
        f'<p class="notice">{text(run.file)}: {text(what)}.</p>'
        for run in inputs.runs
        for what in run.doubts
        if id(run) in shown
    )
    script = page_script()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_hash(plotly_source)} {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    spread = f"{inputs.runs[0].date:%Y-%m-%d}"
    if inputs.runs[-1].date.date() != inputs.runs[0].date.date():
        spread += f" to {inputs.runs[-1].date:%Y-%m-%d}"
    page = string.Template((PAGE / "page.html").read_text(encoding="utf-8"))
    return page.substitute(
        policy=policy,
        version=text(version),
        title=text(title),
        style=(PAGE / "page.css").read_text(encoding="utf-8"),
        lead=_lead(inputs, newest, panels, lines, sweeps),
        made=f'{plural(len(inputs.runs), "result file")} of {spread}; page made on {made:%Y-%m-%d %H:%M} UTC.',
        notices=notices,
        filters=filters,
        sections="\n".join(
            filter(None, [_ratios(panels), _rooflines(rooflines), _sweeps(sweeps), _timelines(lines), results, _runs(inputs.runs)])
        ),
        footer=(
            f"Made by polyhead report {text(version)}. Charts: plotly.js, inside this page; nothing is loaded from anywhere."
        ),
        data=_json(data),
        plotly=plotly_source,
        script=script,
    )

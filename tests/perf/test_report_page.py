"""The page as a document: whole, self-contained, and harmless whatever the result files say. How it looks and behaves in a browser
is tested in browser/."""

import base64
import datetime
import hashlib
import html.parser
import json
import os
import re

import pytest

import report_files
from polyhead_perf import report, report_inputs, report_page

PLOTLY = "/* plotly */ window.Plotly = {};"


class Document(html.parser.HTMLParser):
    """Elements with their attributes, and the texts of those that matter."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.texts, self.stack = [], {}, []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "input", "img", "br"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert tag in self.stack, f"</{tag}> closes nothing"
        while self.stack.pop() != tag:
            pass

    def handle_data(self, text):
        if self.stack:
            self.texts.setdefault(self.stack[-1], []).append(text)

    def all(self, tag):
        return [attributes for of, attributes in self.elements if of == tag]


def page_of(folder, plotly=PLOTLY):
    inputs = report_inputs.read_folder(folder)
    made = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.timezone.utc)
    return report_page.build(inputs, "Speed of <Polyhead>", made, "0.1.0", plotly)


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL).group(1))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(report_files.history_folder(tmp_path_factory.mktemp("history")))


def test_nothing_is_loaded_from_anywhere(page):
    document = Document(page)
    for tag, attributes in document.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), f"<{tag} {name}={value!r}>"
    assert "@import" not in page and "url(" not in (report_page.PAGE / "page.css").read_text()


def test_the_policy_admits_these_scripts_and_no_connection(page):
    (policy,) = [of["content"] for of in Document(page).all("meta") if of.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "connect-src" not in rules
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    hashes = {"'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'" for script in scripts}
    assert set(rules["script-src"].split()) == hashes


def test_hostile_texts_stay_texts(page):
    document = Document(page)
    assert document.all("img") == [], "a name of a benchmark has become an element"
    assert len(document.all("script")) == 3
    assert not any(name.startswith("on") for _, attributes in document.elements for name in attributes)
    assert any(report_files.HOSTILE in text for text in document.texts["td"]) or report_files.HOSTILE in "".join(
        document.texts["td"]
    )
    assert any(row["name"] == f"attention/{report_files.HOSTILE}" for row in data_of(page)["rows"]) or any(
        report_files.HOSTILE.replace("</script>", "") in row["name"].replace("</script>", "") for row in data_of(page)["rows"]
    )
    assert document.texts["title"] == ["Speed of <Polyhead>"]


def test_every_newest_result_has_a_row(page):
    rows = data_of(page)["rows"]
    found = [attributes["data-row"] for attributes in Document(page).all("tr") if "data-row" in attributes]
    # suite: 10 benchmarks x 2 threads, one wrong, one hostile; peers: 2 parts x 2 threads x (8 cases x 6 engines - 2)
    assert found == [str(index) for index in range(len(rows))] and len(rows) == 22 + 2 * 2 * 46


def test_a_wrong_result_is_said_and_has_no_time(page):
    (row,) = [row for row in data_of(page)["rows"] if row["name"] == "attention/wrong"]
    assert row["ms"] is None and row["problem"].startswith("wrong result")
    assert "1 benchmark gave no result" in page


def test_the_sentence_at_the_top_says_what_is_seen(page):
    data = data_of(page)
    means = {panel["threads"]: panel["mean"] for panel in data["ratios"] if panel["part"] == "attention"}
    lead = re.sub(r"<[^>]+>", "", re.search(r'<p class="lead">(.*?)</p>', page).group(1))
    assert lead.startswith("On AMD EPYC, attention runs at ")
    assert f"{means[1]:.2f}&times; the best peer with 1 thread" in lead
    assert re.search(r"at the last change 2 of \d+ series became slower and 2 faster", lead), lead


def test_change_points_are_those_that_were_put_in(page):
    changed = {(line["name"], line["threads"]): line["changes"] for line in data_of(page)["lines"] if line["changes"]}
    assert set(changed) == {(name, threads) for name in ("attention/decode-b1", "gemm/512x512x512") for threads in (1, 2)}
    for (name, _), changes in changed.items():
        (change,) = changes
        expected = (14, 0.12) if name.startswith("attention") else (9, -0.12)
        assert abs(change["index"] - expected[0]) <= 1 and change["change"] == pytest.approx(expected[1], abs=0.03)


def test_rooflines_have_the_measured_roofs(page):
    panels = {panel["threads"]: panel for panel in data_of(page)["rooflines"]}
    roofs = {roof["name"]: roof for roof in panels[1]["roofs"]}
    assert roofs["fma avx2"]["kind"] == "arithmetic" and roofs["fma avx2"]["rate"] == pytest.approx(94, rel=0.05)
    assert roofs["read DRAM"]["kind"] == "read" and roofs["read DRAM"]["rate"] == pytest.approx(14.2, rel=0.05)
    for point in panels[1]["points"]:
        row = data_of(page)["rows"][point["row"]]
        assert point["x"] == pytest.approx(row["gflops"] / row["gbps"]) and point["y"] == row["gflops"]


def test_peak_benchmarks_serve_as_roofs_where_results_name_none(tmp_path):
    report_files.suite_file(tmp_path / "a.json", 0, roofline=False)
    document = json.loads((tmp_path / "a.json").read_text())
    document["benchmarks"] += [
        report_files.entry("peak/multiply_add/avx2/threads:1/real_time", 1.0, **{"GFLOP/s": 95.0}),
        report_files.entry("peak/read/512MB/avx2/threads:1/real_time", 1.0, **{"GB/s": 15.0}),
    ]
    (tmp_path / "a.json").write_text(json.dumps(document))
    (panel,) = [panel for panel in data_of(page_of(tmp_path))["rooflines"] if panel["threads"] == 1]
    assert {(roof["kind"], roof["name"], roof["rate"]) for roof in panel["roofs"]} == {
        ("arithmetic", "multiply_add avx2", 95.0),
        ("read", "read 512MB avx2", 15.0),
    }


def test_sweeps_have_charts_of_their_own(tmp_path):
    report_files.suite_file(tmp_path / "suite.json", 0)
    report_files.sweep_file(tmp_path / "old.json", 1, cliffs=(5, 7, 9))
    report_files.sweep_file(tmp_path / "new.json", 2, families=("queries", "keys"), sizes=range(2, 12), cliffs=(10,))
    page = page_of(tmp_path)
    data = data_of(page)
    queries, keys = data["sweeps"]
    assert (queries["family"], keys["family"], queries["unit"], queries["held"]) == ("queries", "keys", "queries", "h=4,s=512,d=64")
    assert [point["size"] for point in queries["points"]] == list(range(2, 12)), "the newest run's, in order, each once"
    assert [(point["size"], point["cliff"]) for point in queries["points"] if point["cliff"]] == [(10, 1.5)]
    assert queries["points"][0]["ms"] == pytest.approx(0.02)
    assert not any(row["group"] == "sweep" for row in data["rows"]), "thousands of sizes would drown the table"
    assert data["lines"] == [], "and the time lines"
    assert "of 20 sizes in 2 sweeps <strong>2</strong> are cliffs" in page and "1 cliff: 10<" in page


def test_a_sweep_alone_makes_a_page(tmp_path):
    report_files.sweep_file(tmp_path / "a.json", 1)
    page = page_of(tmp_path)
    assert len(data_of(page)["sweeps"]) == 1 and "of 19 sizes in 1 sweep <strong>none</strong> is a cliff" in page


def test_a_sweep_with_the_counters_of_others_is_no_roofline(tmp_path):
    report_files.sweep_file(tmp_path / "a.json", 1, gflops=5.0, gbps=2.0, roof=90.0, bound="fma avx2")
    data = data_of(page_of(tmp_path))
    assert data["rooflines"] == [] and len(data["sweeps"]) == 1


def test_numbers_and_names_at_the_ends_of_what_is_read(tmp_path):
    """The largest and smallest numbers, one entry alone, and a file whose name is not UTF-8."""
    report_files.suite_file(tmp_path / "a.json", 0, threads=(1,))
    document = json.loads((tmp_path / "a.json").read_text())
    extremes = [1e100, 1e-100, 1.0]
    document["benchmarks"] = [
        report_files.entry(f"a/{time}/{flops}/{bytes_}", time, flops, bytes_) for time in extremes for flops in extremes for bytes_ in extremes
    ]
    for day, factor in enumerate((1, 1e-90, 1e90, 1, 1e-90, 1e90, 1, 1)):
        document["context"] = report_files.context(day)
        document["benchmarks"][-1]["real_time"] = factor
        (tmp_path / f"{day}.json").write_text(json.dumps(document))
    data_of(page_of(tmp_path))
    report_files.sweep_file(tmp_path / "lone.json", 1, sizes=(3,))
    os.rename(os.fsencode(tmp_path / "lone.json"), os.fsencode(tmp_path) + b"/\xff\xfe.json")
    page_of(tmp_path).encode("utf-8")


def test_machines_are_apart(tmp_path):
    data = data_of(page_of(report_files.three_machines_folder(tmp_path)))
    assert [(panel["machine"], panel["part"], panel["threads"]) for panel in data["ratios"][:2]] == [
        ("AMD EPYC", "attention", 1),
        ("AMD EPYC", "attention", 2),
    ]
    assert len(data["ratios"]) == 3 * 2 * 2 and len(data["rooflines"]) == 3 * 2 and data["lines"] == []
    assert {row["machine"] for row in data["rows"]} == {
        "AMD EPYC",
        "Intel Xeon Platinum 8480+",
        "AMD EPYC 9R14 96-Core Processor",
    }


def test_cpus_of_one_name_are_told_apart_by_their_instruction_sets(tmp_path):
    for number, isa in enumerate(("avx512", "avx2", "avx512")):
        report_files.peers_file(tmp_path / f"{number}.json", number, isa=isa, parts=("attention",), gain=1 + 0.3 * number)
    page = page_of(tmp_path)
    panels = data_of(page)["ratios"]
    assert [(panel["isa"], panel["threads"], panel["file"]) for panel in panels] == [
        ("avx2", 1, "1.json"),
        ("avx2", 2, "1.json"),
        ("avx512", 1, "2.json"),
        ("avx512", 2, "2.json"),
    ]
    means = [panel["mean"] for panel in panels]
    lead = re.sub(r"<[^>]+>", "", re.search(r'<p class="lead">(.*?)</p>', page).group(1))
    assert f"attention runs at {min(means):.2f}&times; to {max(means):.2f}&times; the best peer" in lead, lead


def test_ratios_are_of_medians_to_the_best_peer(tmp_path):
    report_files.peers_file(tmp_path / "a.json", 0, parts=("attention",), threads=(1,))
    (panel,) = data_of(page_of(tmp_path))["ratios"]
    medians = {}
    for result in json.loads((tmp_path / "a.json").read_text())["results"]:
        medians.setdefault(result["case"], {})[result["engine"]] = result["median_ms"]
    product = 1.0
    for row in panel["cases"]:
        ours = medians[row["case"]].pop("polyhead")
        assert row["ratio"] == pytest.approx(min(medians[row["case"]].values()) / ours)
        product *= row["ratio"]
    assert panel["mean"] == pytest.approx(product ** (1 / len(panel["cases"])))


def test_a_run_slowed_for_a_test_is_noticed_and_kept_out_of_history(tmp_path):
    for day in range(3):
        report_files.suite_file(tmp_path / f"{day}.json", day)
    report_files.suite_file(tmp_path / "3.json", 3, slow_down="10")
    page = page_of(tmp_path)
    assert "3.json: slowed down on purpose (slow_down 10)." in page
    assert {len(line["points"]) for line in data_of(page)["lines"]} == {3}


def test_controls_have_names_and_headings_are_in_order(page):
    document = Document(page)
    levels = [int(tag[1]) for tag, _ in document.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1 and all(next - last <= 1 for last, next in zip(levels, levels[1:]))
    for attributes in [of for tag, of in document.elements if of.get("role") == "img"]:
        assert len(attributes["aria-label"]) > 40
    assert document.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def luminance(colour):
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_stand_out_in_both_schemes():
    """WCAG 2: 4.5 for text, 3 for marks."""
    css = (report_page.PAGE / "page.css").read_text()
    schemes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    ]
    assert len(schemes) == 3
    for scheme in schemes:
        for ground in ("page", "surface"):
            for name, colour in scheme.items():
                if name in ("page", "surface", "line", "grid", "accent-soft", "warn-soft"):
                    continue
                light, dark = sorted((luminance(colour), luminance(scheme[ground])), reverse=True)
                least = 3.0 if name.startswith(("engine-", "series-")) else 4.5
                assert (light + 0.05) / (dark + 0.05) >= least, f"--{name} {colour} on --{ground} {scheme[ground]}"


def test_the_command_writes_the_page_and_warns(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "results"
    folder.mkdir()
    report_files.peers_file(folder / "peers.json", 0)
    (folder / "notes.txt").write_text("hello")
    monkeypatch.setattr(report, "plotly_script", lambda: PLOTLY)
    assert report.main([str(folder), "-o", str(tmp_path / "page.html"), "--title", "Mine"], "polyhead report") == 0
    output = capsys.readouterr()
    assert "page.html: 1 result file, 184 results" in output.out
    assert "polyhead report: warning:" in output.err and "notes.txt" in output.err
    assert "<h1>Mine</h1>" in (tmp_path / "page.html").read_text()
    assert not list(tmp_path.glob("*.part"))


def test_a_share_beyond_the_bound_fills_its_meter_and_no_more(tmp_path):
    """A machine that got faster in between: the number says so, the bar keeps to its frame."""
    entries = [report_files.entry("a/avx2/threads:1", 1.0, 130.0, 1.0, roof=100.0, bound="fma avx2"),
               report_files.entry("b/avx2/threads:1", 1.0, 25.0, 1.0, roof=100.0, bound="fma avx2")]
    (tmp_path / "a.json").write_text(json.dumps({"context": report_files.context(0), "benchmarks": entries}))
    page = page_of(tmp_path)
    assert re.findall(r'class="meter" aria-hidden="true"><span style="width:(\d+)%"></span></span>(\d+) %', page) == [("100", "130"), ("25", "25")]

"""The report's page in headless Chromium, on a desk and on a phone, light and dark: it renders without an error or a request, fits,
shows something in every chart, and its controls work. Needs chromium, chromium-driver, selenium, pillow and plotly."""

import base64
import io
import json
import pathlib
import shutil
import sys
import time

import pytest
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import report_files
from polyhead_perf import report

WIDTHS = {"desk": 1280, "phone": 390, "small-phone": 320}


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """name -> address of a page"""
    made = {}
    for name, fill in (("history", report_files.history_folder), ("machines", report_files.three_machines_folder)):
        folder = tmp_path_factory.mktemp(name)
        fill(folder)
        page = folder.parent / f"{name}.html"
        assert report.main([str(folder), "-o", str(page)], "polyhead report") == 0
        made[name] = page.as_uri()
    return made


@pytest.fixture(scope="session")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


def ready(browser):
    WebDriverWait(browser, 120).until(lambda of: of.execute_script("return document.documentElement.dataset.ready") == "true")


def show(browser, address, width=1280, scheme="light", media=""):
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get("about:blank")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 768}
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get(address)
    ready(browser)


def picture(browser, element=None):
    """A screenshot of the whole page or of an element, however far down."""
    size = (
        "const r = arguments[0] ? arguments[0].getBoundingClientRect() : new DOMRect(0, -scrollY, innerWidth, document.documentElement.scrollHeight);"
        "return [r.x + scrollX, r.y + scrollY, r.width, r.height]"
    )
    x, y, width, height = browser.execute_script(size, element)
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot",
        {"captureBeyondViewport": True, "clip": {"x": x, "y": y, "width": width, "height": min(height, 12000), "scale": 1}},
    )
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


def visible_rows(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('#table tbody tr')].filter(r => !r.hidden).map(r => +r.dataset.row)"
    )


def data_of(browser):
    return json.loads(browser.execute_script("return document.getElementById('data').textContent"))


def settle(browser, condition):
    WebDriverWait(browser, 60).until(condition)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", WIDTHS)
@pytest.mark.parametrize("name", ["history", "machines"])
def test_it_renders_fits_and_shows(browser, pages, name, device, scheme):
    width = WIDTHS[device]
    show(browser, pages[name], width, scheme)

    faults = [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert not faults, faults
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    addresses = {of["params"]["request"]["url"] for of in messages if of["method"] == "Network.requestWillBeSent"} | {
        of["params"].get("url", "") for of in messages if of["method"] == "Network.webSocketCreated"
    }
    assert pages[name] in addresses and all(
        address == pages[name] or address.startswith(("data:", "about:")) for address in addresses
    ), addresses

    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('body *:not(.skip)')].filter(e => e.getClientRects().length && !e.closest('.skip, thead')"
        " && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.tagName + '.' + e.getAttribute('class')).slice(0, 5)"
    )
    assert not beyond, f"wider than {width} pixels: {beyond}"

    ground = picture(browser).getpixel((2, 2))
    assert (sum(ground) > 600) == (scheme == "light"), f"background {ground}"
    charts = [chart for chart in browser.find_elements(By.CLASS_NAME, "chart") if chart.is_displayed()]
    assert len(charts) >= (12 if name == "history" else 18)
    for chart in charts:
        shot = picture(browser, chart)
        colours = sorted(shot.getcolors(shot.width * shot.height), reverse=True)
        drawn = 1 - colours[0][0] / (shot.width * shot.height)
        vivid = sum(count for count, (red, green, blue) in colours if max(red, green, blue) - min(red, green, blue) > 50)
        label = chart.get_attribute("aria-label")
        assert drawn > 0.01 and vivid > 40, f"nothing to be seen in: {label} ({drawn:.1%} drawn, {vivid} coloured pixels)"

    overlaps = browser.execute_script("""
        const found = [];
        for (const chart of document.querySelectorAll('.chart')) {
          const texts = [...chart.querySelectorAll('.xtick text, .ytick text, .x2tick text, .y2tick text, .annotation text')]
            .filter(e => e.textContent.trim() && !/rotate\\((?!0[,)])/.test(e.closest('.annotation')?.querySelector('.annotation-text-g')?.getAttribute('transform') || ''));
          const boxes = texts.map(e => [e.textContent, e.getBoundingClientRect()]);
          boxes.forEach(([a, r], i) => boxes.slice(i + 1).forEach(([b, s]) => {
            if (Math.min(r.right, s.right) - Math.max(r.left, s.left) > 1 && Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top) > 3)
              found.push(`${chart.getAttribute('aria-label').slice(0, 50)}: ${a} / ${b}`);
          }));
        }
        return found""")
    assert not overlaps, overlaps
    small = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter(e => e.getClientRects().length && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())"
        " && parseFloat(getComputedStyle(e).fontSize) < 11).map(e => e.outerHTML.slice(0, 80)).slice(0, 5)"
    )
    assert not small, f"unreadably small: {small}"


@pytest.mark.parametrize("device", ["phone", "small-phone"])
def test_controls_are_large_enough_for_a_finger(browser, pages, device):
    show(browser, pages["machines"], WIDTHS[device])
    small = browser.execute_script(
        "return [...document.querySelectorAll('button, select, input, summary')].filter(e => e.getClientRects().length && !e.closest('thead'))"
        ".map(e => [e.id || e.textContent, e.getBoundingClientRect()]).filter(([, r]) => r.height < 44 || r.width < 44).map(([n]) => n)"
    )
    assert not small, small


def test_hostile_names_stay_texts(browser, pages):
    show(browser, pages["history"])
    assert browser.title == "Polyhead performance"
    assert browser.execute_script("return document.images.length") == 0
    browser.find_element(By.ID, "filter-text").send_keys("onerror")
    settle(browser, lambda of: len(visible_rows(of)) == 2)
    assert report_files.HOSTILE in browser.find_element(By.ID, "table").text
    assert browser.title == "Polyhead performance" and browser.execute_script("return document.images.length") == 0


def test_a_script_that_slips_in_does_not_run(browser, pages, tmp_path):
    """The page's own policy is the second wall."""
    source = pathlib.Path(pages["history"][len("file://") :]).read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(
        source.replace("<main>", "<main>" + report_files.HOSTILE + "<img src='https://example.invalid/x.png'>", 1),
        encoding="utf-8",
    )
    show(browser, broken.as_uri())
    assert browser.title == "Polyhead performance"
    blocked = [entry["message"] for entry in browser.get_log("browser") if "Content Security Policy" in entry["message"]]
    assert any("example.invalid" in message for message in blocked) and len(blocked) >= 3, blocked


@pytest.mark.parametrize("by", ["mouse", "keyboard", "phone"])
def test_sorting(browser, pages, by):
    show(browser, pages["history"], WIDTHS["phone" if by == "phone" else "desk"])
    rows = data_of(browser)["rows"]

    def press(key):
        head = browser.find_element(By.CSS_SELECTOR, f"[data-sort={key}]")
        if by == "mouse":
            browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", head)
            head.click()
        elif by == "keyboard":
            browser.execute_script("arguments[0].focus()", head)
            head.send_keys(Keys.ENTER)
        else:
            sort = Select(browser.find_element(By.ID, "sort-by"))
            if (
                sort.first_selected_option.get_attribute("value") == key
                and head.find_element(By.XPATH, "..").get_attribute("aria-sort") != "none"
            ):
                browser.find_element(By.ID, "sort-direction").click()
            else:
                sort.select_by_value(key)
        return (
            browser.find_element(By.CSS_SELECTOR, f"[data-sort={key}]").find_element(By.XPATH, "..").get_attribute("aria-sort")
        )

    assert press("seconds") == "ascending"
    times = [rows[row]["ms"] for row in visible_rows(browser)]
    assert times == sorted(times) and times[0] == min(row["ms"] for row in rows if row["ms"] is not None)
    assert press("seconds") == "descending"
    times = [rows[row]["ms"] for row in visible_rows(browser)]
    assert times == sorted(times, reverse=True) and None not in times, "what has no time comes last either way"
    if by != "phone":
        assert press("name") == "ascending"
        names = [rows[row]["name"] for row in visible_rows(browser)]
        assert names.index("attention/bert-128") < names.index("attention/tiny")
        sorts = browser.find_elements(By.CSS_SELECTOR, "th[aria-sort]:not([aria-sort=none])")
        assert len(sorts) == 1


def test_filters_narrow_table_and_charts_and_live_in_the_address(browser, pages):
    show(browser, pages["machines"])
    rows = data_of(browser)["rows"]
    panels = lambda: [panel for panel in browser.find_elements(By.CSS_SELECTOR, "[data-panel=ratio]") if panel.is_displayed()]
    assert len(panels()) == 12

    Select(browser.find_element(By.ID, "filter-machine")).select_by_visible_text("AMD EPYC")
    Select(browser.find_element(By.ID, "filter-threads")).select_by_value("2")
    browser.find_element(By.ID, "filter-text").send_keys("Decode ")
    expected = [
        index
        for index, row in enumerate(rows)
        if row["machine"] == "AMD EPYC" and row["threads"] == 2 and "decode" in row["name"]
    ]
    settle(browser, lambda of: visible_rows(of) == expected)
    assert len(expected) == 1 + 2 * 5  # the suite's, and two parts with five engines
    assert browser.find_element(By.ID, "filter-count").text == f"11 of {len(rows)} results"
    settle(browser, lambda of: len(panels()) == 2)
    labels = browser.execute_script(
        "return [...document.querySelectorAll('[data-panel=ratio]:not([hidden]) .ytick text')].map(e => e.textContent.trim())"
    )
    assert labels == ["decode-b1", "decode-b1"]

    browser.refresh()
    ready(browser)
    assert (
        visible_rows(browser) == expected
        and browser.find_element(By.ID, "filter-text").get_attribute("value").strip() == "Decode"
    )

    browser.find_element(By.ID, "filter-text").clear()
    browser.find_element(By.ID, "filter-text").send_keys("nothing is called this")
    settle(browser, lambda of: visible_rows(of) == [])
    assert browser.find_element(By.ID, "table-empty").is_displayed() and not panels()

    browser.find_element(By.ID, "filter-reset").click()
    settle(browser, lambda of: len(panels()) == 12)
    assert browser.find_element(By.ID, "filter-count").text == f"{len(rows)} results" and "#" not in browser.current_url


def test_time_lines_can_be_asked_for(browser, pages):
    show(browser, pages["history"])
    lines = lambda: browser.execute_script("return [...document.querySelectorAll('#timelines h3')].map(e => e.textContent)")
    assert len(lines()) == 6 and set(lines()[:4]) == {"attention/decode-b1", "gemm/512x512x512"}
    browser.execute_script("document.getElementById('timelines-more').click()")
    assert len(lines()) == 12
    Select(browser.find_element(By.ID, "spacing")).select_by_value("date")
    ticks = browser.execute_script("return document.querySelector('#timelines .xtick text').textContent")
    assert "Sep" in ticks
    browser.find_element(By.ID, "filter-text").send_keys("softmax")
    settle(browser, lambda of: set(lines()) == {"softmax/1024x1024"})


def test_all_rows_can_be_shown(browser, pages):
    show(browser, pages["history"])
    rows = data_of(browser)["rows"]
    assert len(visible_rows(browser)) == 50
    more = browser.find_element(By.ID, "table-more")
    assert more.text == f"Show all {len(rows)} results"
    browser.execute_script("arguments[0].click()", more)
    assert len(visible_rows(browser)) == len(rows) and not more.is_displayed()


def test_colours_follow_the_scheme_while_the_page_is_open(browser, pages):
    show(browser, pages["machines"])
    tone = "return getComputedStyle(document.querySelector('.chart .ytick text')).fill"
    light = browser.execute_script(tone)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    settle(browser, lambda of: of.execute_script(tone) != light)


def test_printing_shows_everything_on_white(browser, pages):
    show(browser, pages["history"], 1280, "dark")
    rows = len(data_of(browser)["rows"])
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    settle(browser, lambda of: len(visible_rows(of)) == rows)
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(d => d.open)")
    assert not browser.find_element(By.ID, "filters").is_displayed()
    assert (
        browser.execute_script(
            "return Math.max(...[...document.querySelectorAll('.chart .main-svg')].map(e => e.getBoundingClientRect().width))"
        )
        <= 660
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    settle(browser, lambda of: len(visible_rows(of)) == 50)
    paper = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert paper.startswith(b"%PDF") and len(paper) > 100_000


def test_it_is_there_within_seconds(browser, pages):
    """On a slow and busy machine; a desk needs a second."""
    start = time.monotonic()
    show(browser, pages["machines"], 390)
    assert time.monotonic() - start < 30

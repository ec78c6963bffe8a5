"""The report page: what is in it, what is never in it, and what a real browser makes of it."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import CHROMIUM, page
from report_sample import HOSTILE, sample_report

from infra.records import from_json, to_json
from training.evaluation.report import duration, render_plots, render_report, shade, visible, write_report
from training.evaluation.report_data import ReportData
from training.evaluation.report_views import choose_examples
from training.evaluation.step_figures import round_up

SECTIONS = ("outcome", "learning", "horizon", "gradient", "gates", "tasks", "habits", "errors", "trajectories")


@pytest.fixture(scope="module")
def data() -> ReportData:
    return sample_report(iterations=5)


@pytest.fixture(scope="module")
def html(data: ReportData) -> str:
    return render_report(data)


def test_the_page_is_a_pure_function_of_a_record_that_survives_json(data: ReportData, html: str) -> None:
    again = from_json(ReportData, to_json(data))
    assert again == data
    assert render_report(again) == html


def test_every_section_and_every_chart_is_there(html: str, data: ReportData) -> None:
    assert re.findall(r'<section id="(\w+)">', html) == list(SECTIONS)
    assert html.count('<svg class="chart"') == 14
    assert html.count('<details class="card run"') == len(data.trajectories) == 3
    cells = [r for point in data.iterations for r in point.pass_rates]
    assert html.count("--v:") == sum(r is not None for r in cells) > 50


def test_what_was_trained_on_is_told_of_every_iteration(html: str) -> None:
    rows = re.findall(r"<tr><td>(\d+)</td><td class=\"num\">64</td>(.*?)</tr>", html)
    assert [int(number) for number, _ in rows] == [0, 1, 2, 3, 4]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for _, row in rows]
    assert [row[:4] for row in cells] == [
        ["0", "0", "0", "80"],
        ["1", "0", "1", "80"],
        ["2", "1", "0", "80"],
        ["0", "0", "1", "80"],
        ["1", "0", "0", "80"],
    ]
    assert [row[4:6] for row in cells] == [["compacted 16", "80"]] * 5
    assert cells[0][6] == "verify 40, check 300"
    assert cells[1][6] == "but 3, verify 41, check 300"


def test_the_ends_of_an_axis_are_round_whatever_the_values() -> None:
    assert [round_up(v) for v in (0.0, 0.003, 0.02, 0.05, 0.4, 0.41, 3.2, 90)] == [
        1,
        0.004,
        0.02,
        0.08,
        0.4,
        0.8,
        4,
        100,
    ]


def test_hostile_text_is_shown_and_never_alive(html: str) -> None:
    assert HOSTILE not in html
    assert html.count("<script>") == 1
    assert "&lt;script&gt;document.title=&#39;owned&#39;&lt;/script&gt;" in html
    assert "\x1b" not in html
    assert "␛[2J" in html


def test_nothing_in_the_page_points_outside_it(html: str) -> None:
    assert re.findall(r'(?:src|href|action|srcset)\s*=\s*"([^"#][^"]*)"', html) == ["data:,"]
    assert not re.search(r"url\(|@import|<link(?! rel=\"icon\")|<iframe|<object", html)
    assert "default-src 'none'" in html


def test_tokens_are_shaded_by_their_probability() -> None:
    assert [shade(p) for p in (1.0, 0.95, 0.9, 0.5, 0.3, 0.02, 0.0005)] == [0, 0, 1, 2, 3, 6, 9]
    assert [duration(s) for s in (0.014, 4.2, 41, 200, 7500)] == ["14 ms", "4.2 s", "41 s", "3 min 20 s", "2 h 05 min"]
    assert visible("a\x00\x1b\n\x9b\udc80") == "a␀␛\n\ufffd?"


def test_the_plots_are_documents_of_their_own_with_their_legends(data: ReportData) -> None:
    plots = render_plots(data)
    assert list(plots) == ["learning_curve", "success_by_horizon", "zero_gradient"]
    for plot in plots.values():
        root = ElementTree.fromstring(plot)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find(".//{http://www.w3.org/1999/xhtml}li") is not None
        assert root.find(".//{http://www.w3.org/2000/svg}svg/*") is not None
        assert not re.search(r"(src|href|url)[=(]", plot)


def test_a_record_whose_rows_do_not_fit_its_tasks_is_refused(data: ReportData) -> None:
    with pytest.raises(ValueError, match="has 80 pass rates for 79 tasks"):
        dataclasses.replace(data, tasks=data.tasks[:-1])
    with pytest.raises(ValueError, match="no iteration to show"):
        render_report(dataclasses.replace(data, iterations=()))


def test_one_iteration_without_a_verdict_or_a_step_still_makes_a_page(data: ReportData) -> None:
    bare = dataclasses.replace(data.iterations[0], step=None, held_out=None)
    small = dataclasses.replace(data, iterations=(bare,), verdict=None, greedy=data.comparison, trajectories=())
    assert "greedy decoding" in render_report(small)
    assert "in 1 iteration<" in render_report(small)


def test_the_examples_are_a_task_that_turned_and_the_longest_that_is_won() -> None:
    before = {"a": False, "b": True, "c": False}
    after = {"a": True, "b": True, "c": False}
    horizons = {"a": 3, "b": 9, "c": 12}
    assert choose_examples(before, after, horizons) == (("before", "a"), ("after", "a"), ("after", "b"))
    assert choose_examples(before, dict.fromkeys(before, False), horizons) == (("after", "c"),)
    assert choose_examples({}, {}, {}) == ()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install one (Debian: apt-get install chromium)")
async def test_a_real_browser_renders_it_without_errors_and_asks_nobody_for_anything(
    data: ReportData, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    write_report(data, path)
    async with page(tmp_path / "profile") as tab:
        await tab.open(path)
        assert tab.of("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
        asked = [event["request"]["url"] for event in tab.of("Network.requestWillBeSent")]
        assert [url for url in asked if not url.startswith("data:")] == [path.as_uri()]
        assert await tab.evaluate("document.title") == "Longbreath run report"
        heights = await tab.evaluate("[...document.querySelectorAll('section')].map(s => s.offsetHeight)")
        assert len(heights) == len(SECTIONS)
        assert min(heights) > 150
        drawn = await tab.evaluate("[...document.querySelectorAll('svg.chart')].map(s => s.getBBox().width)")
        assert min(drawn) > 200
        assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        light = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        await tab.evaluate("document.getElementById('theme').click()")
        dark = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert {light, dark} == {"rgb(250, 249, 246)", "rgb(20, 23, 26)"}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install one (Debian: apt-get install chromium)")
async def test_the_browser_check_sees_a_script_error_and_an_outside_request(tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text("<title>x</title><img src='http://evil.example/x.png'><script>nope()</script>")
    async with page(tmp_path / "profile") as tab:
        await tab.open(path)
        assert tab.of("Runtime.exceptionThrown")
        assert "http://evil.example/x.png" in [e["request"]["url"] for e in tab.of("Network.requestWillBeSent")]

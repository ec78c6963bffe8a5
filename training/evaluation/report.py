"""The report: one self-contained page. No outside request: styles, charts and the one script are inline.

What agents wrote is hostile text: everything is escaped, and a content security policy allows nothing but the page's
own style and its one script, named by hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from training.evaluation import figures, step_figures
from training.evaluation.report_data import ReportData

_SCRIPT = """
const root = document.documentElement, button = document.getElementById('theme');
button.addEventListener('click', () => {
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
});
const links = [...document.querySelectorAll('nav a')];
const seen = new IntersectionObserver(entries => entries.forEach(e => {
  if (e.isIntersecting) links.forEach(a => a.classList.toggle('here', a.hash === '#' + e.target.id));
}), {rootMargin: '-20% 0px -70% 0px'});
document.querySelectorAll('main section[id]').forEach(s => seen.observe(s));
"""


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("training.evaluation", "templates"),
        autoescape=select_autoescape(default_for_string=True, default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["points"] = lambda value: f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")
    environment.filters["percent"] = lambda value: f"{100 * value:.0f}%"
    environment.filters["shade"] = shade
    environment.filters["duration"] = duration
    environment.filters["visible"] = visible
    return environment


def shade(probability: float) -> int:
    """How strongly a token is shaded, 0..9: 0 at probability 1, 9 below one in a thousand (log scale)."""
    return next(
        (9 - i for i, edge in enumerate((0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.8, 0.95)) if probability < edge), 0
    )


def duration(seconds: float) -> str:
    """'14 ms', '41 s', '3 min 20 s', '2 h 05 min'."""
    whole = round(seconds)
    if seconds < 0.95:
        return f"{1000 * seconds:.0f} ms"
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def visible(text: str) -> str:
    """Text with control characters made visible, line ends and tabs kept: terminals' escapes do nothing here."""
    return "".join(
        chr(0x2400 + ord(c)) if ord(c) < 0x20 and c not in "\n\t" else "\ufffd" if 0x7F <= ord(c) < 0xA0 else c
        for c in text.encode("utf-8", "replace").decode("utf-8")
    )


def render_report(data: ReportData) -> str:
    """The page as HTML. Pure: the same record gives the same page. Raises ValueError without one iteration."""
    if not data.iterations:
        raise ValueError("report: there is no iteration to show; render it after the first one")
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    template = _environment().get_template("report.html.jinja")
    return template.render(data=data, fig=figures, steps=step_figures, script=Markup(_SCRIPT), script_hash=digest)


def render_plots(data: ReportData) -> dict[str, str]:
    """The report's main charts as pictures of their own: name -> SVG document with its legend."""
    style = _environment().get_template("report.css.jinja").render()
    charts = {
        "learning_curve": figures.learning_curve(data),
        "success_by_horizon": figures.horizon_curve(data),
        "zero_gradient": figures.zero_gradient(data),
    }
    return {name: _picture(str(chart), style) for name, chart in charts.items()}


def _picture(chart: str, style: str) -> str:
    """A legend (HTML) and a chart (SVG) as one SVG document: the legend above, the whole in the chart's width."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart)
    assert found is not None, "every figure is an svg.canvas"
    width, height = float(found[1]), float(found[2]) + 60
    inside = chart.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}"><style>{style}</style>'
        f'<foreignObject width="100%" height="100%"><body xmlns="http://www.w3.org/1999/xhtml">{inside}</body>'
        f"</foreignObject></svg>"
    )


def write_report(data: ReportData, path: Path) -> None:
    """Write the page. Raises OSError."""
    path.write_text(render_report(data), encoding="utf-8")

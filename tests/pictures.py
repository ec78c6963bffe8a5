"""README's pictures, drawn from a real run: what its terminal showed, and the top of its report.

longbreath finetune --preset tiny 2> run.log
python tests/pictures.py HOME RUN_ID run.log       # needs Chromium; writes infra/pictures/*.png
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parent / "training" / "evaluation"))
from browser import page

from flows.cli.summary import print_summary
from flows.home import Home
from infra import records
from training.evaluation.report import write_report
from training.evaluation.report_data import ReportData

PICTURES = Path(__file__).parent.parent / "infra" / "pictures"
COLUMNS, REPORT_SIZE = 104, (1200, 1500)
_LINE = re.compile(r" *\d+\.\ds ")
_HOME = "/home/you/longbreath/.longbreath"
"""Stands for the home folder's path, which is of no interest."""


def lines_of(log: str) -> list[str]:
    """What the run said: its lines with their times, joined where a narrow terminal broke them."""
    said: list[str] = []
    for line in log.splitlines():
        if _LINE.match(line):
            said.append(line.rstrip())
        elif said and not line.startswith(("Held-out", "┏")):
            said[-1] += f" {line.strip()}"
        elif said:
            break
    return said


def draw_terminal(log: str, result: dict, home: str, svg: Path) -> tuple[int, int]:
    """The run's lines and its summary as a picture of a terminal; its size in pixels."""
    out = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False, force_terminal=True)
    out.print("[bold]$ make run[/]")
    out.print("[bold]longbreath finetune[/] --preset tiny: loading libraries, then measuring the start")
    for line in lines_of(log):
        out.print(Text.assemble((line[:8], "dim"), line[8:].replace(home, _HOME)))
    print_summary(json.loads(json.dumps(result).replace(home, _HOME)), out)
    svg.write_text(out.export_svg(title="make run"))
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg.read_text()).groups()  # type: ignore[union-attr]
    return round(float(width)), round(float(height))


async def draw(home: Home, run_id: str, log: Path) -> None:
    """Both pictures. The report is made anew from its record, without the address of the tracking database."""
    folder = home.run(run_id)
    data = records.from_json(ReportData, (folder / "report.json").read_bytes())
    data = replace(data, facts=tuple(f for f in data.facts if f[0] != "MLflow"))
    result = json.loads((folder / "result.json").read_text())
    with tempfile.TemporaryDirectory() as scratch:
        svg, html = Path(scratch) / "terminal.svg", Path(scratch) / "report.html"
        size = draw_terminal(log.read_text(), result, str(home.root), svg)
        write_report(data, html)
        async with page(Path(scratch) / "profile") as tab:
            for path, (width, height) in ((svg, size), (html, REPORT_SIZE)):
                await tab.open(path)
                await tab.screenshot(PICTURES / f"{path.stem}.png", width=width, height=height)


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("home", type=Path)
    parser.add_argument("run_id")
    parser.add_argument("log", type=Path, help="standard error of the run")
    asked = parser.parse_args()
    asyncio.run(draw(Home(asked.home.resolve()), asked.run_id, asked.log))


if __name__ == "__main__":
    main()

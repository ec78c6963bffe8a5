"""Small inline charts. Colours are CSS variables of the page, so that they follow its theme; all text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]
Format = Callable[[float], str]


def percent(value: float) -> str:
    """0.25 -> 25%."""
    return f"{100 * value:.0f}%"


def whole(value: float) -> str:
    """3.0 -> 3."""
    return f"{value:.0f}"


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Data coordinates `x0..x1`, `y0..y1` on a canvas of `width` x `height` user units with margins."""

    width: float
    height: float
    x0: float
    x1: float
    y0: float = 0.0
    y1: float = 1.0
    left: float = 58.0
    right: float = 14.0
    top: float = 12.0
    bottom: float = 40.0

    def x(self, value: float) -> float:
        """Canvas x of a data x."""
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Canvas y of a data y."""
        return (
            self.height - self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.height - self.top - self.bottom)
        )


def canvas(frame: Frame, label: str, *parts: Markup) -> Markup:
    """The chart. `label` is what a screen reader says."""
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _n(frame.width), _n(frame.height), label, Markup("").join(parts)
    )


def ticks(low: float, high: float, most: int) -> list[int]:
    """At most `most` whole numbers spread over low..high."""
    span = max(1, round(high - low))
    step = next(
        s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 10_000) if span / s <= most - 1 or s == 10_000
    )
    first = -(-int(low) // step) * step
    return list(range(first, int(high) + 1, step))


def axes(
    frame: Frame,
    *,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
    y_label: str,
    x_format: Format = whole,
    y_format: Format = percent,
) -> Markup:
    """Grid lines, tick labels and axis titles with units."""
    out: list[Markup] = []
    left, right = frame.left, frame.width - frame.right
    base = frame.height - frame.bottom
    for value in y_ticks:
        y = _n(frame.y(value))
        out.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_n(left), _n(right), y, y))
        out.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="end" dy="0.32em">{}</text>').format(
                _n(left - 8), y, y_format(value)
            )
        )
    for value in x_ticks:
        out.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                _n(frame.x(value)), _n(base + 17), x_format(value)
            )
        )
    middle = (left + right) / 2
    out.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(left, right, base, base))
    out.append(
        Markup('<text class="title" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            _n(middle), _n(frame.height - 5), x_label
        )
    )
    if y_label:
        centre = _n((frame.top + base) / 2)
        out.append(
            Markup(
                '<text class="title" text-anchor="middle" transform="translate(12 {}) rotate(-90)">{}</text>'
            ).format(centre, y_label)
        )
    return Markup("").join(out)


def _path(frame: Frame, points: Sequence[Point]) -> str:
    return "M" + " L".join(f"{_n(frame.x(x))} {_n(frame.y(y))}" for x, y in points)


def line(frame: Frame, points: Sequence[Point], series: str, *, dashed: bool = False) -> Markup:
    """A polyline in the colour of `series`."""
    if len(points) < 2:
        return Markup("")
    kind = "line dashed" if dashed else "line"
    return Markup('<path class="{} {}" d="{}"/>').format(kind, series, _path(frame, points))


def step_line(frame: Frame, points: Sequence[Point], series: str) -> Markup:
    """A right-continuous step curve."""
    stepped: list[Point] = []
    for at, (x, y) in enumerate(points):
        if at:
            stepped.append((x, points[at - 1][1]))
        stepped.append((x, y))
    return line(frame, stepped, series)


def band(frame: Frame, lows: Sequence[Point], highs: Sequence[Point], series: str) -> Markup:
    """A filled interval between two curves."""
    if len(lows) < 2:
        return Markup("")
    return Markup('<path class="band {}" d="{} Z"/>').format(series, _path(frame, [*lows, *reversed(highs)]))


def dot(frame: Frame, x: float, y: float, series: str, tip: str, *, hollow: bool = False) -> Markup:
    """A point with a tooltip."""
    return Markup('<circle class="{} {}" cx="{}" cy="{}" r="4"><title>{}</title></circle>').format(
        "dot hollow" if hollow else "dot", series, _n(frame.x(x)), _n(frame.y(y)), tip
    )


def whisker(frame: Frame, x: float, low: float, high: float, series: str) -> Markup:
    """A vertical interval."""
    return Markup('<line class="whisker {}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        series, _n(frame.x(x)), _n(frame.x(x)), _n(frame.y(low)), _n(frame.y(high))
    )


def box(x: float, y: float, width: float, height: float, series: str, tip: str, *, style: str = "") -> Markup:
    """A filled rectangle in canvas units with a tooltip."""
    return Markup('<rect class="box {}" x="{}" y="{}" width="{}" height="{}"{}><title>{}</title></rect>').format(
        series,
        _n(x),
        _n(y),
        _n(max(width, 0)),
        _n(max(height, 0)),
        Markup(' style="{}"').format(style) if style else "",
        tip,
    )


def stacked(
    frame: Frame, x: float, parts: Sequence[tuple[float, str, str]], *, width: float, gap: float = 1.5
) -> Markup:
    """One bar at data x of (share, series, tooltip) from the bottom up, in canvas units `width` wide."""
    out: list[Markup] = []
    at = frame.y0
    for share, series, tip in parts:
        if share > 0:
            top, bottom = frame.y(at + share), frame.y(at)
            out.append(
                box(
                    frame.x(x) - width / 2,
                    top,
                    width,
                    bottom - top - (gap if at + share < frame.y1 else 0),
                    series,
                    tip,
                )
            )
        at += share
    return Markup("").join(out)


def text(x: float, y: float, words: str, kind: str = "tick", anchor: str = "start") -> Markup:
    """Words at a canvas place."""
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}" dy="0.32em">{}</text>').format(
        kind, _n(x), _n(y), anchor, words
    )


def legend(*entries: tuple[str, str, str]) -> Markup:
    """An HTML legend of (mark 'line' | 'dashed' | 'dot' | 'box', series, words)."""
    items = (
        Markup('<li><i class="mark {} {}"></i>{}</li>').format(mark, series, escape(words))
        for mark, series, words in entries
    )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))

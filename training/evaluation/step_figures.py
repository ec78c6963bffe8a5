"""The report's figures of the training steps: where the gradient lay, the ratios, how far the policy went."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from training.evaluation import svg
from training.evaluation.report_data import ReportData, StepView
from training.evaluation.svg import Format, Frame

_HALF, _WIDE, _HEIGHT = 480.0, 1000.0, 260.0

# Bins of `training.reports.RATIO_EDGES`, taken together: first, behind the last, series, words.
_RATIOS = (
    (0, 2, "s-bad", "below 0.5"),
    (2, 4, "s-warn", "0.5 to 0.95"),
    (4, 5, "s-calm", "0.95 to 1.05"),
    (5, 7, "s-train", "1.05 to 2"),
    (7, 10, "s-after", "above 2"),
)
_TENTHS = (
    (0, 1, "s-warn", "least probable tenth"),
    (1, 5, "s-train", "tenths 2 to 5"),
    (5, 10, "s-calm", "more probable half"),
)


def _steps(data: ReportData) -> list[tuple[int, StepView]]:
    return [(point.iteration, point.step) for point in data.iterations if point.step is not None]


def _frame(data: ReportData, *, top: float = 1.0, width: float = _HALF) -> Frame:
    numbers = [point.iteration for point in data.iterations]
    return Frame(width=width, height=_HEIGHT, x0=min(numbers) - 0.5, x1=max(numbers) + 0.5, y1=top)


def _axes(frame: Frame, y_label: str, y_format: Format) -> Markup:
    return svg.axes(
        frame,
        x_ticks=svg.ticks(frame.x0 + 0.5, frame.x1 - 0.5, 21 if frame.width > _HALF else 13),
        y_ticks=[frame.y1 * i / 4 for i in range(5)],
        x_label="iteration",
        y_label=y_label,
        y_format=y_format,
    )


def rare_tokens(data: ReportData) -> Markup:
    """The share of the summed logit-gradient norm that falls on rare words."""
    curve = [(float(x), step.rare_token_gradient_share) for x, step in _steps(data)]
    return _lines(
        data,
        [(curve, "s-warn", "gradient on rare words")],
        title="Gradient on rare words",
        y_label="share of gradient",
        y_format=lambda v: f"{100 * v:.3g}%",
    )


def divergence(data: ReportData) -> Markup:
    """KL of each iteration's policy from the first one, and of the one trained from the one that was sampled."""
    steps = _steps(data)
    start = [(float(x), step.kl_to_start) for x, step in steps if step.kl_to_start is not None]
    behaviour = [(float(x), step.kl_to_behaviour) for x, step in steps]
    return _lines(
        data,
        [(start, "s-after", "from the first policy"), (behaviour, "s-train", "from the policy that was sampled")],
        title="KL divergence",
        y_label="KL (nats a token)",
        y_format=lambda v: f"{v:.2g}",
        width=_WIDE,
    )


def _lines(
    data: ReportData,
    curves: Sequence[tuple[Sequence[tuple[float, float]], str, str]],
    *,
    title: str,
    y_label: str,
    y_format: Format,
    width: float = _HALF,
) -> Markup:
    """(points, series, words) as lines from zero, with a legend."""
    top = round_up(max((y for points, _, _ in curves for _, y in points), default=0.0))
    frame = _frame(data, top=top, width=width)
    parts = [_axes(frame, y_label, y_format)]
    for points, series, words in curves:
        parts.append(svg.line(frame, points, series))
        parts += [svg.dot(frame, x, y, series, f"iteration {x:.0f}: {y:.3g} {words}") for x, y in points]
    key = svg.legend(*(("line", series, words) for points, series, words in curves if points))
    return key + svg.canvas(frame, title, *parts)


def round_up(value: float) -> float:
    """1, 2, 4 or 8 times a power of ten, at least `value`: an axis's end that four steps divide well."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(top * unit for top in (1, 2, 4, 8, 10) if value <= top * unit * (1 + 1e-9))


def gradient_by_probability(data: ReportData) -> Markup:
    """How the summed logit-gradient norm is divided among tokens by the probability that they were sampled with."""
    return _stacks(
        data, _TENTHS, lambda step: step.decile_gradient_share, "share of gradient", "Gradient by probability"
    )


def ratios(data: ReportData) -> Markup:
    """The importance ratios of the trained tokens, policy over ratio base."""
    return _stacks(data, _RATIOS, _ratio_shares, "share of tokens", "Importance ratios")


def _ratio_shares(step: StepView) -> Sequence[float]:
    total = max(1, sum(step.ratio_histogram))
    return [count / total for count in step.ratio_histogram]


def _stacks(
    data: ReportData,
    kinds: Sequence[tuple[int, int, str, str]],
    shares: Callable[[StepView], Sequence[float]],
    y_label: str,
    title: str,
) -> Markup:
    """A bar of shares for each iteration, neighbouring shares taken together as `kinds` says."""
    frame = _frame(data)
    width = min(34.0, 0.72 * (frame.width - frame.left - frame.right) / len(data.iterations))
    bars = []
    for number, step in _steps(data):
        values = shares(step)
        sums = [(sum(values[first:last]), series, words) for first, last, series, words in kinds]
        tips = [(share, series, f"iteration {number}: {share:.1%} {words}") for share, series, words in sums]
        bars.append(svg.stacked(frame, number, tips, width=width))
    key = svg.legend(*(("box", series, words) for _, _, series, words in kinds))
    return key + svg.canvas(frame, title, _axes(frame, y_label, svg.percent), *bars)

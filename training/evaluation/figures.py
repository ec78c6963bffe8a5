"""The report's figures, one function each: from the record to an inline chart with its legend."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from training.evaluation import svg
from training.evaluation.estimates import Estimate
from training.evaluation.report_data import GateCount, IterationPoint, PolicyView, ReportData
from training.evaluation.success import independent_half_horizon
from training.evaluation.svg import Frame

_QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WIDE, _HALF, _THIRD = 1000.0, 480.0, 320.0


def shown(estimate: Estimate) -> str:
    """'43% [35%, 51%]'."""
    return f"{estimate.mean:.0%} [{estimate.low:.0%}, {estimate.high:.0%}]"


def independent_half(view: PolicyView) -> float | None:
    """The half-success horizon that the policy's errors would give if each came on its own and was the end."""
    p = view.step_success
    return independent_half_horizon(p) if p is not None and 0 < p < 1 else None


def _iteration_frame(data: ReportData, *, width: float, height: float = 260.0, pad: float = 0.5) -> Frame:
    numbers = [point.iteration for point in data.iterations]
    return Frame(width=width, height=height, x0=min(numbers) - pad, x1=max(numbers) + pad)


def _iteration_axes(frame: Frame, data: ReportData, y_label: str, *, most: int = 13) -> Markup:
    numbers = [point.iteration for point in data.iterations]
    return svg.axes(
        frame,
        x_ticks=svg.ticks(min(numbers), max(numbers), most),
        y_ticks=_QUARTERS,
        x_label="iteration",
        y_label=y_label,
    )


def _series(frame: Frame, points: Sequence[tuple[int, Estimate | None]], series: str, what: str) -> Markup:
    """A line with its interval as a band and a dot with a tooltip at each point."""
    known = [(x, e) for x, e in points if e is not None]
    return Markup("").join(
        [
            svg.band(frame, [(x, e.low) for x, e in known], [(x, e.high) for x, e in known], series),
            svg.line(frame, [(x, e.mean) for x, e in known], series),
            *(svg.dot(frame, x, e.mean, series, f"iteration {x}: {what} {shown(e)}, n = {e.n}") for x, e in known),
        ]
    )


def _held_out(data: ReportData) -> dict[int, Estimate]:
    """Held-out success of the policy that enters an iteration; the last one leaves the last iteration."""
    first, last = data.iterations[0].iteration, data.iterations[-1].iteration
    found = {point.iteration: point.held_out for point in data.iterations if point.held_out is not None}
    return {first: data.before.success} | found | {last + 1: data.after.success}


def learning_curve(data: ReportData) -> Markup:
    """Pass rate of each iteration's rollouts, and the held-out benchmarks."""
    held_out = _held_out(data)
    first, last = min(held_out), max(held_out)
    frame = Frame(width=_WIDE, height=300, x0=first - 0.5, x1=last + 0.5)
    axis = svg.axes(
        frame, x_ticks=svg.ticks(first, last, 21), y_ticks=_QUARTERS, x_label="iteration", y_label="pass rate"
    )
    parts = [axis, _series(frame, [(p.iteration, p.train) for p in data.iterations], "s-train", "training rollouts")]
    parts.append(svg.line(frame, [(x, e.mean) for x, e in sorted(held_out.items())], "s-after", dashed=True))
    for x, estimate in held_out.items():
        tip = f"entering iteration {x}: held-out {shown(estimate)}, n = {estimate.n} tasks"
        parts.append(svg.whisker(frame, x, estimate.low, estimate.high, "s-after"))
        parts.append(svg.dot(frame, x, estimate.mean, "s-after", tip))
    key = svg.legend(
        ("dot", "s-after", "held-out tasks, 95% interval"),
        ("line", "s-train", "training rollouts, 95% interval (tasks selected for difficulty)"),
    )
    return key + svg.canvas(frame, "Pass rate by iteration", *parts)


def _power_curve(frame: Frame, step_success: float | None, series: str) -> Markup:
    if step_success is None:
        return Markup("")
    xs = [frame.x0 + (frame.x1 - frame.x0) * i / 80 for i in range(81)]
    return svg.line(frame, [(x, step_success**x) for x in xs if x > 0], series, dashed=True)


def horizon_curve(data: ReportData) -> Markup:
    """Terminal success by band of horizons, before and after, beside p^T."""
    views = ((data.before, "s-before", -1.0), (data.after, "s-after", 1.0))
    longest = max(b.high for view, _, _ in views for b in view.bands)
    frame = Frame(width=_WIDE, height=320, x0=0, x1=longest * 1.04)
    nudge = 3.0 / (frame.width - frame.left - frame.right) * frame.x1
    parts = [
        svg.axes(
            frame,
            x_ticks=svg.ticks(0, longest, 14),
            y_ticks=_QUARTERS,
            x_label="task horizon (turns of the reference solution)",
            y_label="held-out success",
        )
    ]
    entries: list[tuple[str, str, str]] = []
    for view, series, side in views:
        points = [(b.mean_horizon + side * nudge, b) for b in view.bands]
        parts.append(_power_curve(frame, view.step_success, series))
        parts.append(svg.line(frame, [(x, b.terminal.mean) for x, b in points], series))
        for x, b in points:
            tip = f"{view.label}, horizons {b.low}-{b.high}: {shown(b.terminal)}, n = {b.terminal.n} tasks"
            parts.append(svg.whisker(frame, x, b.terminal.low, b.terminal.high, series))
            parts.append(svg.dot(frame, x, b.terminal.mean, series, tip))
        entries.append(("dot", series, f"{view.label}, 95% interval"))
        if view.step_success is not None:
            entries.append(("dashed", series, f"pᵀ with its p = {view.step_success:.3f} a turn"))
    return svg.legend(*entries) + svg.canvas(frame, "Success against horizon", *parts)


def _bar_width(frame: Frame, num: int) -> float:
    return min(34.0, 0.72 * (frame.width - frame.left - frame.right) / max(num, 1))


def zero_gradient(data: ReportData) -> Markup:
    """Groups that carry gradient, and those that do not, per iteration."""
    frame = _iteration_frame(data, width=_HALF)
    width = _bar_width(frame, len(data.iterations))
    bars = [
        svg.stacked(
            frame,
            point.iteration,
            [
                (point.groups.mixed, "s-after", f"iteration {point.iteration}: {point.groups.mixed:.0%} mixed"),
                (point.groups.all_fail, "s-bad", f"iteration {point.iteration}: {point.groups.all_fail:.0%} all fail"),
                (point.groups.all_pass, "s-calm", f"iteration {point.iteration}: {point.groups.all_pass:.0%} all pass"),
            ],
            width=width,
        )
        for point in data.iterations
    ]
    key = svg.legend(
        ("box", "s-after", "mixed: carries gradient"), ("box", "s-bad", "all fail"), ("box", "s-calm", "all pass")
    )
    return key + svg.canvas(frame, "Groups by gradient", _iteration_axes(frame, data, "share of groups"), *bars)


def _round_up(value: float) -> float:
    return next(top for top in (0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if value <= top + 1e-9)


def _gate_bar(frame: Frame, point: IterationPoint, gate: GateCount, width: float) -> Markup:
    total = gate.passed + gate.failed + gate.observed_failed + gate.not_reached
    outcomes = (
        (gate.passed, "s-after", "passed"),
        (gate.failed, "s-bad", "failed"),
        (gate.observed_failed, "s-warn", "would have failed (log only)"),
        (gate.not_reached, "s-none", "not reached"),
    )
    parts = [(n / total, series, f"iteration {point.iteration}: {n} of {total} {what}") for n, series, what in outcomes]
    return svg.stacked(frame, point.iteration, parts, width=width) if total else Markup("")


def gate_outcomes(data: ReportData) -> list[tuple[str, Markup]]:
    """(gate, chart): the outcomes of one gate per iteration."""
    names = list(dict.fromkeys(gate.name for point in data.iterations for gate in point.gates))
    out: list[tuple[str, Markup]] = []
    for name in names:
        frame = _iteration_frame(data, width=_THIRD, height=230)
        width = _bar_width(frame, len(data.iterations))
        bars = [_gate_bar(frame, p, gate, width) for p in data.iterations for gate in p.gates if gate.name == name]
        axis = _iteration_axes(frame, data, "share of rollouts", most=8)
        out.append((name, svg.canvas(frame, f"Outcomes of the gate {name}", axis, *bars)))
    return out


def gate_legend() -> Markup:
    """The legend that all gate charts share."""
    return svg.legend(
        ("box", "s-after", "passed"),
        ("box", "s-bad", "failed: reward 0"),
        ("box", "s-warn", "would have failed (log only)"),
        ("box", "s-none", "not reached"),
    )


def heat_map(data: ReportData) -> Markup:
    """Pass rate of every task in every iteration that selected it; rows by horizon."""
    order = sorted(range(len(data.tasks)), key=lambda i: (data.tasks[i].horizon, data.tasks[i].task_id))
    order = [i for i in order if any(point.pass_rates[i] is not None for point in data.iterations)]
    row = max(5.0, min(14.0, 620.0 / max(len(order), 1)))
    left, top, bottom = 58.0, 6.0, 40.0
    column = min(60.0, (_WIDE - left - 20) / max(len(data.iterations), 1))
    height = top + row * len(order) + bottom
    parts: list[Markup] = []
    for at, task_index in enumerate(order):
        task = data.tasks[task_index]
        for col, point in enumerate(data.iterations):
            parts.append(_cell(left + col * column, top + at * row, column, row, task.task_id, point, task_index))
        if at == 0 or data.tasks[order[at - 1]].horizon != task.horizon:
            parts.append(svg.text(left - 8, top + at * row + 5, str(task.horizon), anchor="end"))
    every = max(1, round(34 / column))
    for col, point in enumerate(data.iterations):
        if col % every == 0:
            parts.append(
                svg.text(left + (col + 0.5) * column, height - bottom + 12, str(point.iteration), anchor="middle")
            )
    used = left + column * len(data.iterations)
    parts.append(svg.text((left + used) / 2, height - 8, "iteration", "title", "middle"))
    parts.append(
        Markup(
            '<text class="title" text-anchor="middle" transform="translate(12 {}) rotate(-90)">horizon (turns)</text>'
        ).format(f"{(height - bottom) / 2:.0f}")
    )
    frame = Frame(width=used + 14, height=height, x0=0, x1=1)
    return svg.canvas(frame, "Pass rate of tasks by iteration", *parts)


def _cell(x: float, y: float, width: float, height: float, task_id: str, point: IterationPoint, index: int) -> Markup:
    rate = point.pass_rates[index]
    gap = 1.0 if height < 8 else 1.5
    tip = f"{task_id}, iteration {point.iteration}: " + ("not selected" if rate is None else f"pass rate {rate:.0%}")
    style = "" if rate is None else f"--v:{rate:.3f}"
    kind = "cell empty" if rate is None else "cell"
    return svg.box(x, y, width - gap, height - gap, kind, tip, style=style)


def habits(data: ReportData) -> Markup:
    """P(verify before finishing) and P(inspect after an error) over training."""
    frame = _iteration_frame(data, width=_WIDE, height=260)
    verify = [(p.iteration, p.behaviour.verify_before_finish) for p in data.iterations]
    inspect = [(p.iteration, p.behaviour.inspect_after_error) for p in data.iterations]
    key = svg.legend(("line", "s-after", "P(verify before finishing)"), ("line", "s-warn", "P(inspect after an error)"))
    return key + svg.canvas(
        frame,
        "Habits over training",
        _iteration_axes(frame, data, "probability", most=21),
        _series(frame, inspect, "s-warn", "inspects after an error"),
        _series(frame, verify, "s-after", "verifies before finishing"),
    )


def first_error(data: ReportData) -> Markup:
    """Cumulative incidence of the first error, success competing."""
    views = ((data.before, "s-before"), (data.after, "s-after"))
    last = max(view.first_error.turns[-1] for view, _ in views)
    frame = Frame(width=_HALF, height=260, x0=0, x1=last + 0.5)
    parts = [
        svg.axes(
            frame,
            x_ticks=svg.ticks(0, last, 9),
            y_ticks=_QUARTERS,
            x_label="turn",
            y_label="has made an error",
        )
    ]
    for view, series in views:
        curve = view.first_error
        xs = [0.0, *map(float, curve.turns)]
        parts.append(
            svg.band(
                frame,
                list(zip(xs, (0.0, *curve.error_low), strict=True)),
                list(zip(xs, (0.0, *curve.error_high), strict=True)),
                series,
            )
        )
        parts.append(svg.step_line(frame, list(zip(xs, (0.0, *curve.error), strict=True)), series))
    key = svg.legend(*(("line", series, view.label) for view, series in views))
    return key + svg.canvas(frame, "Cumulative incidence of the first error", *parts)


_CLASS_SERIES = ("s-bad", "s-warn", "s-train", "s-before", "s-calm", "s-after", "s-none")


def error_classes(view: PolicyView) -> Markup:
    """What kinds of error come at which turn, as shares of the rollouts still running."""
    errors = view.errors
    last = max(len(errors.num_running), 1)
    heights = [sum(share[t] for share in errors.shares) for t in range(len(errors.num_running))]
    top = _round_up(min(1.0, max(heights, default=0.1)))
    frame = Frame(width=_HALF, height=260, x0=0.4, x1=last + 0.6, y1=top)
    axis = svg.axes(
        frame,
        x_ticks=svg.ticks(1, last, 9),
        y_ticks=[top * i / 4 for i in range(5)],
        x_label="turn",
        y_label="share in error",
        y_format=lambda v: f"{100 * v:.3g}%",
    )
    width = _bar_width(frame, last)
    bars = [
        svg.stacked(
            frame,
            turn + 1,
            [
                (
                    share[turn],
                    series,
                    f"turn {turn + 1}: {share[turn]:.1%} {name} of {errors.num_running[turn]} running",
                )
                for name, share, series in zip(errors.classes, errors.shares, _CLASS_SERIES, strict=False)
            ],
            width=width,
            gap=0,
        )
        for turn in range(len(errors.num_running))
    ]
    key = svg.legend(
        *(("box", series, name.replace("_", " ")) for name, series in zip(errors.classes, _CLASS_SERIES, strict=False))
    )
    return key + svg.canvas(frame, f"Errors by turn, {view.label}", axis, *bars)


def interval_bar(estimate: Estimate, series: str, *, low: float = 0.0, high: float = 1.0) -> Markup:
    """A small inline interval for a table cell, over the range low..high; a mark stands at zero if it is inside."""
    frame = Frame(width=150, height=18, x0=low, x1=high, left=4, right=4, top=0, bottom=0)
    zero = (
        svg.text(0, 0, "")
        if not low < 0 < high
        else Markup('<line class="axis" x1="{0}" x2="{0}" y1="0" y2="18"/>').format(f"{frame.x(0):.1f}")
    )
    bar = Markup('<line class="whisker {}" x1="{}" x2="{}" y1="9" y2="9"/>').format(
        series, f"{frame.x(estimate.low):.1f}", f"{frame.x(estimate.high):.1f}"
    )
    point = Markup('<circle class="dot {}" cx="{}" cy="9" r="4"/>').format(series, f"{frame.x(estimate.mean):.1f}")
    return Markup('<svg class="inline" viewBox="0 0 150 18" aria-hidden="true">{}{}{}</svg>').format(zero, bar, point)

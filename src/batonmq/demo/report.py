"""The demonstration's result as one self-contained HTML page with plots, and its plots as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jinja2
import matplotlib as mpl
import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from batonmq.common.plots import BLUE, GREEN, GREY, RED, STYLE
from batonmq.spark.report import svg

mpl.use("svg")

TEMPLATE = Path(__file__).with_name("report.html.j2")
BUCKET_S = 0.1
"""What one step of the timeline counts."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, marked in the timeline."""

    at_us: int
    text: str
    colour: str = RED


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that the page shows."""

    acks_us: np.ndarray
    """Moments of the acknowledgements, sorted, us."""
    moments: list[Moment]
    delays: list[tuple[str, int, float]]
    """Carrier, flights, mean arrival delay in minutes."""
    queue_offsets: dict[str, tuple[np.ndarray, np.ndarray]]
    """Queue -> (moment of each acknowledgement in us, queue offset), in order of the offset."""
    rows: list[tuple[str, str]]
    """The closing table."""
    machine: str
    passed: bool


def timeline(data: ReportData) -> Figure:
    """Acknowledged messages a second over time, with the fault marked."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    axes = figure.subplots()
    origin = data.acks_us[0]
    seconds = (data.acks_us - origin) / 1e6
    edges = np.arange(0, seconds[-1] + 2 * BUCKET_S, BUCKET_S)
    counts, _ = np.histogram(seconds, edges)
    axes.fill_between(edges[:-1], counts / BUCKET_S, step="post", color=BLUE, alpha=0.75, linewidth=0)
    for i, moment in enumerate(data.moments):
        at = (moment.at_us - origin) / 1e6
        axes.axvline(at, color=moment.colour, linewidth=1.2)
        axes.annotate(
            moment.text,
            (at, 1.0 - 0.11 * i),
            xycoords=("data", "axes fraction"),
            xytext=(4, -2),
            textcoords="offset points",
            color=moment.colour,
            va="top",
        )
    axes.set(title="Acknowledged messages a second", xlabel="seconds", xlim=(0, edges[-1]))
    # Room above the bars for the marks' texts.
    axes.set_ylim(0, 1.4 * counts.max() / BUCKET_S)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def delays(data: ReportData) -> Figure:
    """Mean arrival delay by carrier, from the messages' bodies."""
    figure = Figure(figsize=(9, 3.0), layout="constrained")
    axes = figure.subplots()
    carriers = [c for c, _, _ in data.delays]
    means = [m for _, _, m in data.delays]
    axes.bar(carriers, means, color=[RED if m > 0 else GREEN for m in means])
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(title="Mean arrival delay by carrier", ylabel="minutes")
    return figure


def contiguity(data: ReportData) -> Figure:
    """Queue offset over time of acknowledgement, a line a queue: a hole would be a step, a loss a gap."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    origin = data.acks_us[0]
    for queue, (moments, offsets) in sorted(data.queue_offsets.items()):
        step = max(1, len(offsets) // 1500)
        axes.plot((moments[::step] - origin) / 1e6, offsets[::step], linewidth=1, label=queue)
    for moment in data.moments:
        axes.axvline((moment.at_us - origin) / 1e6, color=moment.colour, linewidth=1)
    axes.set(
        title="Offsets of each queue, as they were acknowledged", xlabel="seconds", ylabel="queue offset"
    )
    axes.legend(fontsize=7, ncols=4, frameon=False)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def write(data: ReportData, directory: Path) -> Path:
    """Write ``report.html`` and ``timeline.png`` below `directory`; returns the page's path."""
    with mpl.rc_context(STYLE):
        plots = [svg(timeline(data)), svg(delays(data)), svg(contiguity(data))]
        timeline(data).savefig(directory / "timeline.png", dpi=130)
    template = jinja2.Environment(autoescape=True).from_string(TEMPLATE.read_text())
    page = template.render(data=data, plots=plots)
    path = directory / "report.html"
    path.write_text(page)
    return path


def queue_offsets(history: pa.Table) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """`ReportData.queue_offsets` of a history table (`history.SCHEMA`)."""
    frame = history.select(["queue", "offset", "acked_us"]).to_pandas().dropna(subset=["queue"])
    return {
        str(queue): (part["acked_us"].to_numpy(np.int64), part["offset"].to_numpy(np.int64))
        for queue, part in frame.sort_values("offset").groupby("queue")
    }

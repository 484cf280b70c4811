"""The plot: for each scenario and system the time until the caller is back, on one scale."""

from __future__ import annotations

import math
from html import escape

from bench.interruptbench.environments import load_systems
from bench.interruptbench.results import Group, Results, figures
from bench.interruptbench.scenarios import SCENARIOS
from bench.interruptbench.stage import RETURN_BOUND_S

SHOWN = ("1a", "1b", "1c", "1d", "2a", "2b", "2c", "3a", "3b", "4", "6a")
COLOURS = ("#c2410c", "#0f766e", "#0891b2", "#4d7c0f", "#7c3aed", "#b45309", "#be185d", "#334155")
LEFT, WIDTH, LANE, GAP = 150.0, 620.0, 11.0, 24.0
LEAST_S = 1e-4


def draw(results: Results) -> str:
    """An SVG: a line from the least to the most, a tick at p95, a dot at p50; right, bad runs."""
    systems = results.systems
    titles = {name: spec.title for name, spec in load_systems().items()}
    shown = [each for each in SHOWN if any(g.scenario == each for g in results.groups)]
    height = 46 + len(shown) * (GAP + LANE * len(systems)) + 20
    parts = [_axis(height)]
    top = 46.0
    for identity in shown:
        title = escape(f"{identity} {SCENARIOS[identity].title}")
        parts.append(f'<text x="{LEFT}" y="{top + 14:g}" class="t">{title}</text>')
        top += GAP
        for number, system in enumerate(systems):
            y = top + LANE * number + LANE / 2
            name = escape(titles.get(system, system))
            parts.append(f'<text x="{LEFT - 6:g}" y="{y + 3:g}" class="n">{name}</text>')
            group = results.group(identity, system)
            if group is not None:
                parts.append(_lane(group, y, COLOURS[number % len(COLOURS)]))
        top += LANE * len(systems)
    style = (
        "text{font:9px sans-serif;fill:#333}.t{font-weight:bold;font-size:11px}"
        ".n{text-anchor:end}.a{text-anchor:middle;fill:#777}"
    )
    size = f'width="{LEFT + WIDTH + 70:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def place(seconds: float) -> float:
    """Where a time is, on a logarithmic scale."""
    span = math.log10(RETURN_BOUND_S / LEAST_S)
    return LEFT + WIDTH * math.log10(max(seconds, LEAST_S) / LEAST_S) / span


def _axis(height: float) -> str:
    heading = "Time from the stop until the caller is back. Dot: p50, tick: p95, line: all runs."
    parts = [f'<text x="{LEFT}" y="14" class="t">{heading}</text>']
    for seconds in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, RETURN_BOUND_S):
        x = place(seconds)
        words = f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"
        parts.append(f'<path d="M{x:.1f} 36V{height - 8:g}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="32" class="a">{words}</text>')
    return "".join(parts)


def _lane(group: Group, y: float, colour: str) -> str:
    values = group.measured("returned_s")
    found = figures(values)
    if found is None:
        return ""
    least, most = place(min(values)), place(found.most)
    p50, p95 = place(found.p50), place(found.p95)
    drawn = (
        f'<g stroke="{colour}" fill="{colour}"><path d="M{least:.1f} {y:g}H{most:.1f}'
        f'M{p95:.1f} {y - 3:g}v6"/><circle cx="{p50:.1f}" cy="{y:g}" r="2.5"/></g>'
    )
    if group.bad_runs:
        words = f"{group.bad_runs} of {group.runs} bad"
        drawn += f'<text x="{LEFT + WIDTH + 8:g}" y="{y + 3:g}" fill="#b91c1c">{words}</text>'
    return drawn

"""The final table: held-out success by domain, before and after training beside a random policy's."""

from __future__ import annotations

from rich.table import Table

from rollart.observability.summary import Summary


def result_table(summary: Summary) -> Table:
    """One row a domain and, with several domains, their mean."""
    table = Table(title="held-out success", title_justify="left")
    table.add_column("domain")
    for title in ("random", "before", "after", "gain", "trained mix"):
        table.add_column(title, justify="right")
    rows = list(summary.domains.items())
    for name, domain in rows:
        numbers = (domain.success_random, domain.success_before, domain.success_after)
        mix = "-" if domain.trained_share is None else f"{domain.trained_share:.3f} of {domain.configured_share:.3f}"
        table.add_row(name, *_cells(*numbers), mix, end_section=name == rows[-1][0])
    if len(rows) > 1:
        columns = ("success_random", "success_before", "success_after")
        means = [mean([getattr(domain, column) for _, domain in rows]) for column in columns]
        table.add_row("mean", *_cells(*means), "")
    return table


def mean(values: list[float | None]) -> float | None:
    """The mean, ``None`` unless every value is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _cells(random: float | None, before: float | None, after: float | None) -> tuple[str, str, str, str]:
    gain = None if before is None or after is None else after - before
    shown = ["-" if value is None else f"{value:.3f}" for value in (random, before, after)]
    return shown[0], shown[1], shown[2], "-" if gain is None else f"{gain:+.3f}"

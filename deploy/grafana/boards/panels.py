"""Panels: the few kinds of panels that all boards use.

`$job` is the cluster; Grafana chooses `$__rate_interval` to fit the time range on screen.
"""

from __future__ import annotations

from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG = "codeq-cluster"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

_WIDTH = 24  # The width of a row, in Grafana's columns.
_GRAPH_HEIGHT = 8
_NUMBER_HEIGHT = 4

# An expression, and the legend of its series.
Query = tuple[str, str]


class Board:
    """One dashboard, filled from left to right and top to bottom."""

    def __init__(self, name: str, title: str, about: str) -> None:
        """Begin a board.

        Args:
            name: Of its file and, after `codeq-`, of its address.
            title: Shown after the name of the product.
            about: The question it answers, in one sentence.
        """
        self.name = name
        self._panels = 0
        self.dashboard = (
            Dashboard(f"codeq-cluster / {title}")
            .uid(f"codeq-{name}")
            .description(about)
            .tags([TAG])
            .timezone("browser")
            .refresh("10s")
            .time("now-1h", "now")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .link(
                DashboardLink("codeq-cluster")
                .type(DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
            .with_variable(DatasourceVariable("datasource").label("Source").type("prometheus"))
            .with_variable(
                _variable("job", "Cluster", "label_values(codeq_raft_term, job)", several=False)
            )
        )

    def choose(self, label: str, title: str, metric: str) -> Board:
        """Let the reader choose values of a label of this metric; all are chosen at first."""
        query = f'label_values({metric}{{job="$job"}}, {label})'
        self.dashboard.with_variable(_variable(label, title, query, several=True))
        return self

    def row(self, title: str) -> Board:
        """Begin a row."""
        self._panels += 1
        self.dashboard.with_row(Row(title).id(self._panels))
        return self

    def graph(
        self,
        title: str,
        *queries: Query,
        unit: str = "short",
        about: str = "",
        width: int = _WIDTH // 3,
        stacked: bool = False,
        most: float | None = None,
    ) -> Board:
        """Add lines over time.

        Args:
            title: Of the panel.
            queries: In the order of the legend.
            unit: As Grafana names it.
            about: Help for judging the graph, shown on demand.
            width: In Grafana's 24 columns.
            stacked: Whether to stack the series; only if their sum means something.
            most: The upper end of the axis.
        """
        panel = (
            timeseries.Panel()
            .title(title)
            .description(about)
            .datasource(SOURCE)
            .unit(unit)
            .min(0)
            .height(_GRAPH_HEIGHT)
            .span(width)
            .fill_opacity(20 if stacked else 5)
            .legend(
                common.VizLegendOptions()
                .display_mode(LegendDisplayMode.LIST)
                .placement(LegendPlacement.BOTTOM)
                .show_legend(True)
            )
            .tooltip(
                common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
            )
        )
        if stacked:
            panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
        if most is not None:
            panel.max(most)
        return self._add(panel, queries)

    def number(
        self,
        title: str,
        expression: str,
        *,
        unit: str = "short",
        about: str = "",
        width: int = 3,
        bad_from: float | None = None,
        decimals: int | None = None,
    ) -> Board:
        """Add one number, red from `bad_from` on."""
        steps = [Threshold(value=None, color="text" if bad_from is None else "green")]
        if bad_from is not None:
            steps.append(Threshold(value=bad_from, color="red"))
        panel = (
            stat.Panel()
            .title(title)
            .description(about)
            .datasource(SOURCE)
            .unit(unit)
            .height(_NUMBER_HEIGHT)
            .span(width)
            .color_mode(BigValueColorMode.VALUE)
            .graph_mode(BigValueGraphMode.AREA)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
            .thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        )
        if decimals is not None:
            panel.decimals(decimals)
        return self._add(panel, [(expression, "")])

    def rows(self, title: str, expression: str, *, about: str = "", width: int = _WIDTH) -> Board:
        """Add a table of the current series, one row each."""
        panel = (
            table.Panel()
            .title(title)
            .description(about)
            .datasource(SOURCE)
            .height(_GRAPH_HEIGHT)
            .span(width)
        )
        self._panels += 1
        panel.id(self._panels).with_target(
            _target("A", (expression, "")).format(PromQueryFormat.TABLE).instant()
        )
        self.dashboard.with_panel(panel)
        return self

    def _add(
        self, panel: timeseries.Panel | stat.Panel, queries: list[Query] | tuple[Query, ...]
    ) -> Board:
        self._panels += 1
        panel.id(self._panels)
        for letter, query in zip(ascii_uppercase, queries, strict=False):
            panel.with_target(_target(letter, query))
        self.dashboard.with_panel(panel)
        return self


def _variable(name: str, title: str, query: str, *, several: bool) -> QueryVariable:
    variable = (
        QueryVariable(name)
        .label(title)
        .datasource(SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )
    if not several:
        return variable
    every = VariableOption(text=["All"], value=["$__all"])
    return variable.multi(True).include_all(True).all_value(".+").current(every)


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    expression, legend = query
    return prometheus.Dataquery().ref_id(letter).expr(expression).legend_format(legend)

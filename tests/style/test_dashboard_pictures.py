"""The pictures of the dashboards: how they are drawn, and that the documents have them."""

from xml.etree import ElementTree

import pytest

from docs.build.dashboards.boards import BOARDS
from docs.build.dashboards.panel import Board, Panel, Query, Row
from docs.build.dashboards.pictures import PICTURES, series_name
from docs.build.dashboards.svg_chart import Line, board_svg, format_value
from tests.style.project import ROOT
from tests.support.prometheus import Series

_BYTES_MAX = 200_000
_QUERY = (Query("sum(sessionary_lag_seconds)", "lag"),)
_BOARD = Board(
    "test",
    "test",
    "Does it draw?",
    (
        Row(
            "Row <1>",
            (
                Panel("How late?", "s", "Lateness.", _QUERY, limit=5),
                Panel("How much?", "percentunit", "A share.", _QUERY, limit=0.95, is_floor=True),
                Panel("How many?", "short", "A number.", _QUERY, limit=100),
            ),
        ),
    ),
)


def _classes(svg: str, name: str) -> int:
    return sum(element.get("class") == name for element in ElementTree.fromstring(svg).iter())


def test_a_panel_without_points_says_so() -> None:
    svg = board_svg(_BOARD, {"How late?": [Line("p", ())]}, 60, "drawn")
    assert svg.count(">no data<") == 3
    assert _classes(svg, "line") == 0


def test_lines_break_where_points_are_missing_and_limits_are_drawn_if_they_are_near() -> None:
    steady = Line("a", tuple((float(at_s), 2.0) for at_s in range(0, 60, 10)))
    broken = Line("b", tuple((float(at_s), 3.0) for at_s in (0, 10, 40, 50)))
    svg = board_svg(_BOARD, {"How late?": [steady, broken], "How many?": [steady]}, 60, "drawn")
    paths = [element.get("d", "") for element in ElementTree.fromstring(svg).iter() if element.get("class") == "line"]
    assert [path.count("M") for path in paths] == [1, 2, 1]
    assert _classes(svg, "limit") == 1  # 100 is far above 2
    assert (">below 5 s<" in svg, ">above 95 %<" in svg, ">below 100<" in svg) == (True, True, True)
    assert svg.count(">no data<") == 1


def test_more_lines_than_the_legend_holds_are_counted() -> None:
    lines = [Line(f"series {number}", ((0.0, 1.0), (10.0, 1.0))) for number in range(9)]
    svg = board_svg(_BOARD, {"How late?": lines}, 60, "drawn")
    assert "and 4 more" in svg
    assert _classes(svg, "line") == 9


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0, "s", "0 s"),
        (0.0123, "s", "12.3 ms"),
        (90.0, "s", "90 s"),
        (0.045, "percentunit", "4.5 %"),
        (200e6, "bytes", "200 MB"),
        (500.0, "bytes", "500 B"),
        (1_250.0, "cps", "1.25 k/s"),
        (-3.0, "short", "-3"),
        (1.0, "bool_yes_no", "yes"),
    ],
)
def test_values_have_units(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_every_unit_of_a_panel_can_be_drawn() -> None:
    for board in BOARDS:
        for panel in board.panels:
            assert format_value(1.0, panel.unit), panel


def test_a_series_is_named_by_its_labels() -> None:
    assert series_name("{{sink}}: {{reason}}", Series({"sink": "audit", "reason": "no_table"}, ())) == "audit: no_table"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_the_documents_have_a_picture_of_each_dashboard(board: Board) -> None:
    path = PICTURES / f"{board.name}.svg"
    svg = path.read_text("utf-8")
    assert len(svg) < _BYTES_MAX
    assert svg.count(">no data<") < len(list(board.panels)) / 2
    assert f"](dashboards/{board.name}.svg)" in (ROOT / "docs" / "dashboards.md").read_text("utf-8")

import re
import xml.etree.ElementTree as ElementTree

import pytest

from loadslice.evaluate.report import charts, svg, words


@pytest.mark.parametrize(
    ("low", "high", "log", "wanted"),
    [
        (0, 10, False, [0, 2, 4, 6, 8, 10]),
        (0, 0.3, False, [0, 0.1, 0.2, 0.3]),
        (0.5, 7.5, False, [2, 4, 6]),
        (1e9, 1e12, True, [1e9, 1e10, 1e11, 1e12]),
    ],
)
def test_ticks_are_round_numbers_inside_the_axis(low: float, high: float, log: bool, wanted: list[float]) -> None:
    ticks = svg.Scale(low, high, 0, 100, log=log).ticks()
    assert [round(tick, 6) for tick in ticks] == wanted


def test_scales_map_ends_to_ends_and_clamp_what_lies_outside() -> None:
    scale = svg.Scale(10, 1000, 50, 150, log=True)
    assert scale(10) == 50
    assert scale(100) == pytest.approx(100)
    assert scale(1000) == 150
    assert scale(1) == 50
    assert svg.Scale(3, 3, 50, 150)(3) == 50


def test_text_in_a_chart_is_escaped_and_the_chart_is_well_formed() -> None:
    chart = charts.dots(
        "c",
        "<b>&",
        "'\"",
        [charts.Row("<script>", [charts.Dot(1.0, 0.5, 2.0)])],
        x_label="ms",
        limits=[charts.Limit(1.5, "P95")],
    )
    root = ElementTree.fromstring(str(chart))
    assert root.find("title").text == "<b>&"
    assert any(node.text == "<script>" for node in root.iter("text"))


def test_every_chart_stays_inside_its_drawing_sideways() -> None:
    made = [
        charts.steps("a", "t", "d", [1.0, 2.0], 1.0, x_label="x", y_label="y", band=(0, 1)),
        charts.histogram("b", "t", "d", [0.0, 1.0, 2.0], [1, 2], x_label="x", y_label="y"),
        charts.lines(
            "c",
            "t",
            "d",
            [charts.Line("l", [(0, 0), (5, 100)])],
            x_label="x",
            y_label="y",
            limits=[charts.Limit(4, "l")],
        ),
        charts.stacked("e", "t", "d", [charts.Bar("b", [("queue", 1.0), ("compute", 2.0)])], x_label="ms"),
        charts.roofline("f", "t", "d", [charts.Roof("r", 1e11, 1e10)], [charts.Point("p", 3.0, 3e10, measured=False)]),
    ]
    for chart in made:
        for node in ElementTree.fromstring(str(chart)).iter():
            for key in ("x", "x1", "x2", "cx"):
                if key in node.attrib:
                    assert 0 <= float(node.attrib[key]) <= svg.WIDTH
            for x in re.findall(r"[ML](-?[\d.]+) ", node.attrib.get("d", "")):
                assert 0 <= float(x) <= svg.WIDTH


def test_charts_of_nothing_but_zeros_are_drawn() -> None:
    assert charts.steps("a", "t", "d", [0.0], 1.0, x_label="x", y_label="y")
    assert charts.stacked("e", "t", "d", [charts.Bar("b", [("queue", 0.0)])], x_label="ms")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0, "0.00"), (3.14159, "3.14"), (31.4159, "31.4"), (314.159, "314")]
)
def test_milliseconds_have_about_three_digits(value: float | None, text: str) -> None:
    assert words.ms(value) == text


def test_words_for_numbers() -> None:
    assert words.si(2.5e9, "FLOP") == "2.5 GFLOP"
    assert words.signed_pct(-3.04) == "−3.0%"
    assert words.count(19366) == "19\u202f366"
    assert words.rate(1100.0) == "1\u202f100"
    assert words.seconds(424.0) == "7.1 min"
    assert words.sentence("no items were recorded") == "No items were recorded."
    assert words.hour_of_week(90, from_monday=True) == "Thu 18:00 UTC"

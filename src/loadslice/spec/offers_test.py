from pathlib import Path

import pytest

from loadslice.spec import offers
from loadslice.spec.errors import InputError

BOX = "boxes: {server: {cores: 8, cards: 2}}"


def load(tmp_path: Path, text: str) -> offers.Offers:
    path = tmp_path / "offers.yaml"
    path.write_text(f"version: 1\n{text}\n", encoding="utf-8")
    return offers.load(path)


def test_an_unstated_figure_is_unknown_and_not_zero(tmp_path: Path) -> None:
    found = load(tmp_path, f"{BOX}\nengines: {{gpu: {{kind: gpu, box: server, cards: 1}}}}")
    assert found.engines["gpu"].price_purchase is None
    assert found.engines["gpu"].idle_w is None


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{kind: gpu, box: rack, cards: 1}", "'rack' is not a box here .server."),
        ("{kind: gpu, box: server}", "takes neither cores nor cards"),
        ("{kind: gpu, box: server, cards: 3}", "cards: 3 is not between 0 and 2"),
        ("{kind: gpu, box: server, cards: 1, count_max: 1000000000}", "count_max: 1e.09 is not between"),
        ("{kind: gpu, box: server, cards: 1, active_w: 0.3}", "works on 0.3 W. If that is kilowatts, write 300"),
        ("{kind: npu, box: server, cards: 1, active_w: 0}", "nothing works on 0 W. Leave out what is not known"),
        ("{kind: cpu, box: server, cores: 8, active_w: 0.06}", "If that is kilowatts, write 60"),
        ("{kind: npu, box: server, cards: 1, active_w: 9000}", "neither kilowatts nor milliwatts"),
        ("{kind: gpu, box: server, cards: 1, idle_w: 90, active_w: 70}", "idle_w 90 is above active_w 70"),
        ("{kind: gpu, box: server, cards: 1, price_purchase: .nan}", "price_purchase: nan is not between"),
        ("{kind: gpu, box: server, cards: 1, price_purchase: -1}", "price_purchase: -1 is not between"),
        ("{kind: gpu, box: server, cards: 1, price_purchase: 9000, price_per_hour: 1}", "give one"),
        ("{kind: gpu, box: server, cards: 1, price_per_hour: 0}", "nothing is rented for 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_key(tmp_path: Path, engine: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, f"{BOX}\nengines: {{gpu: {engine}}}")


def test_a_box_and_an_engine_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'server' is a box and an engine"):
        load(tmp_path, f"{BOX}\nengines: {{server: {{kind: gpu, box: server, cards: 1}}}}")


@pytest.mark.parametrize("text", ["boxes: {}\nengines: {}", f"{BOX}\nengines: {{}}"], ids=["nothing", "no engine"])
def test_zero_devices_are_no_offer(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="at least one box and one engine"):
        load(tmp_path, text)

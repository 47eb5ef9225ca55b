from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.graph.pictures import HOSTILE, LONG, pair, seen
from topology.definitions import Definitions
from topology.graph.build import build
from topology.graph.dot import arrange
from topology.graph.live_values import snapshot_marks
from topology.graph.svg import attribute, bar_share, draw
from topology.snapshot import QueueNumbers, Snapshot

SVG = "{http://www.w3.org/2000/svg}"


class Reader(HTMLParser):
    """Every tag with its attributes, as a browser reads them in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def values(self, name: str) -> set[str | None]:
        return {attributes[name] for _, attributes in self.tags if name in attributes}


def numbered(definitions: Definitions) -> Snapshot:
    numbers = {queue.name: QueueNumbers(1204, 1200, 4, 0, 0.4, 0.4) for queue in definitions.queues}
    return seen(definitions, numbers, {exchange.name: 2.0 for exchange in definitions.exchanges})


def picture(snapshot: Snapshot) -> str:
    return draw(arrange(build(snapshot)), title="Retry pair", id="pair")


@pytest.mark.parametrize("name", ["orders", HOSTILE, LONG, "日本", "a b", "]]>", "x\ry\tz"])
def test_any_name_gives_well_formed_xml_with_the_same_tags(name: str) -> None:
    plain = ElementTree.fromstring(picture(numbered(pair("orders"))))
    drawn = ElementTree.fromstring(picture(numbered(pair(name))))
    assert {element.tag for element in drawn.iter()} == {element.tag for element in plain.iter()}


@pytest.mark.parametrize("name", ["orders", HOSTILE, LONG, 'a"b'])
def test_queues_have_the_keys_of_the_snapshot(name: str) -> None:
    snapshot = numbered(pair(name))
    read = Reader(picture(snapshot))
    assert read.values("data-key") == set(snapshot_marks(snapshot))


def test_nothing_is_styled_or_scripted_inline() -> None:
    read = Reader(picture(numbered(pair(HOSTILE))))
    names = {name for _, attributes in read.tags for name in attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    assert not {tag for tag, _ in read.tags if tag in ("script", "style", "foreignobject")}


def test_a_screen_reader_is_given_a_title_and_a_description() -> None:
    root = ElementTree.fromstring(picture(numbered(pair())))
    assert root.get("role") == "img"
    ids = (root.get("aria-labelledby") or "").split()
    texts = {element.get("id"): element.text or "" for element in root.iter()}
    assert texts[ids[0]] == "Retry pair"
    assert "Queue orders-retry, classic, message TTL 5m" in texts[ids[1]]


def test_the_full_long_name_is_in_the_tooltip() -> None:
    root = ElementTree.fromstring(picture(numbered(pair(LONG))))
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert any(f"Queue {LONG}-retry" in title for title in titles)
    names = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "name"]
    assert all(len(name) <= 22 for name in names)


def test_ids_are_named_after_the_picture_so_that_two_fit_on_a_page() -> None:
    layout = arrange(build(pair()))
    one, two = (Reader(draw(layout, title="Pair", id=name)).values("id") for name in "ab")
    assert one
    assert not one & two


def test_a_missing_node_says_so_in_words() -> None:
    drawn = draw(arrange(build(Definitions(), wanted=pair())), title="Planned")
    assert drawn.count(">missing</text>") == 4


def test_without_a_snapshot_no_numbers_are_invented() -> None:
    drawn = draw(arrange(build(pair())), title="Plan")
    assert "messages</tspan>" not in drawn


@pytest.mark.parametrize(
    ("messages", "limit", "share"),
    [(None, None, 0), (0, 10, 0), (5, 10, 0.5), (20, 10, 1), (999_999, None, 1), (1, 10_000, 0.02)],
)
def test_the_bar_fills_by_the_limit_or_else_by_powers_of_ten(
    messages: int | None, limit: int | None, share: float
) -> None:
    assert bar_share(messages, limit) == pytest.approx(share)


def test_an_attribute_keeps_its_text_exactly() -> None:
    read = Reader(f'<g data-key="{attribute(HOSTILE)}"></g>')
    assert read.values("data-key") == {HOSTILE}

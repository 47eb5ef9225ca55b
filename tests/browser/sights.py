"""What is looked at: an address, and what is done on it first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from django.contrib.auth.models import User
from django.urls import reverse
from django.utils.http import urlencode
from playwright.sync_api import Page


@dataclass(frozen=True)
class Sight:
    """`view` is the name of the address in the URL conf; `act` leads from it to the picture."""

    name: str
    view: str
    address: str
    act: Callable[[Page], None] | None = None
    status: int = 200
    is_public: bool = False


@dataclass
class Scene:
    """What there is to look at, and who is signed in."""

    user: User
    sights: list[Sight] = field(default_factory=list)

    def add(self, name: str, view: str, *arguments: object, **options: object) -> None:
        """A sight of the view's address; `query` becomes its query string."""
        query = options.pop("query", None)
        tail = f"?{urlencode(query, doseq=True)}" if isinstance(query, dict) else ""
        address = reverse(view, args=arguments) + tail
        self.sights.append(Sight(name, view, address, **options))  # type: ignore[arg-type]

    def add_lists(self, **queries: dict[str, str]) -> None:
        """The pages that need no row."""
        for view in (
            "now",
            "search",
            "system",
            "demo",
            "publish",
            "retrying_anywhere",
            "dead_letters",
            "replays",
            "topology:brokers",
            "topology:topologies",
            "topology:patterns",
            "topology:audit",
            "topology:findings_overview",
            "analytics:scheduled",
            "scheduled_changes",
            "analytics:reports",
            "retention",
        ):
            name = view.rpartition(":")[2].replace("_", "-")
            self.add(name, view, query=queries.get(name.replace("-", "_")))


def press(name: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("button", name=name).first.click()
        page.wait_for_load_state()

    return act


def then(*acts: Callable[[Page], None]) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        for one in acts:
            one(page)

    return act

"""The form of a client convention: plain names of headers, and the convention that they make."""

from __future__ import annotations

from typing import Any

from django import forms

from topology.clients.conventions import (
    LONGEST_NAME,
    Convention,
    ConventionError,
    Fact,
    Restart,
    check_own,
    read_fact,
    read_pointer,
    write_convention,
    write_fact,
)
from topology.clients.parts import Pointer

COUNTS_HELP = "Add “| failures” if 0 stands for the first attempt."
# Parts of the form: a heading, and its fields.
PARTS = (
    ("Origin", ("queue", "exchange", "routing_key")),
    ("Failure", ("exception_type", "exception_message", "attempt", "attempts")),
    ("Message", ("message_id", "message_type", "publisher")),
    ("Fresh start of a replay", ("remove", "zero")),
)
FACTS = tuple(name for _, names in PARTS[:-1] for name in names)


def _place(label: str, example: str = "", help_text: str = "", **given: Any) -> forms.CharField:
    attrs = {"class": "name", "autocomplete": "off", "spellcheck": "false", "placeholder": example}
    widget = forms.TextInput(attrs=attrs)
    options = {"required": False, "max_length": 1000} | given
    return forms.CharField(label=label, help_text=help_text, widget=widget, **options)


class ClientConventionForm(forms.Form):
    """The form of a convention. After validation `convention` is what was typed, and `text` its
    TOML.
    """

    name = _place("Name", "shop-client", max_length=LONGEST_NAME, required=True)
    known_by = _place("Header that all its messages have", "x-src-queue", required=True)
    queue = _place("Queue", "x-src-queue")
    exchange = _place("Exchange")
    routing_key = _place("Routing key")
    exception_type = _place("Exception type")
    exception_message = _place("Exception message")
    attempt = _place("Attempt that failed", "", COUNTS_HELP)
    attempts = _place("Largest number of attempts", "", COUNTS_HELP)
    message_id = _place("Id")
    message_type = _place("Type")
    publisher = _place("Publisher")
    remove = _place("Headers to remove")
    zero = _place("Counters to set to 0")

    convention: Convention
    text: str

    @property
    def parts(self) -> list[tuple[str, list[forms.BoundField]]]:
        """The fields of facts with their headings."""
        return [(heading, [self[name] for name in names]) for heading, names in PARTS]

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        known_by = [(pointer,) for pointer in self._read_pointers("known_by")]
        facts = {name: self._read_facts(name) for name in FACTS}
        restart = Restart(*(tuple(self._read_pointers(name)) for name in ("remove", "zero")))
        if self.errors:
            return values
        typed = Convention(
            values["name"],
            "",
            tuple(known_by),
            {name: found for name, found in facts.items() if found},
            restart,
        )
        try:
            self.text = write_convention(typed)
            self.convention = check_own(self.text)
        except ConventionError as error:
            self.add_error(None, str(error))
        return values

    def _read_pointers(self, field: str) -> list[Pointer]:
        try:
            return [read_pointer(_point_to(one)) for one in self._split(field)]
        except ConventionError as error:
            self.add_error(field, str(error))
            return []

    def _read_facts(self, field: str) -> tuple[Fact, ...]:
        try:
            return tuple(read_fact(field, _point_to(one)) for one in self._split(field))
        except ConventionError as error:
            self.add_error(field, str(error))
            return ()

    def _split(self, field: str) -> list[str]:
        parts = self.cleaned_data.get(field, "").split(",")
        return [part.strip() for part in parts if part.strip()]


def _point_to(typed: str) -> str:
    """The pointer of what was typed: one already, or the name of a header."""
    if typed.startswith("/"):
        return typed
    name, bar, form = typed.partition("|")
    return f"/headers/{name.strip().replace('~', '~0').replace('/', '~1')} {bar} {form}".strip()


def make_values(own: Convention) -> dict[str, str] | None:
    """What stands in the form of this convention; None where the form cannot show all of it."""
    places = {
        "known_by": [Fact(row[0], "text") for row in own.known_by],
        **{name: own.facts.get(name, ()) for name in FACTS},
        "remove": [Fact(pointer, "text") for pointer in own.restart.remove],
        "zero": [Fact(pointer, "text") for pointer in own.restart.zero],
    }
    values = {name: ", ".join(map(write_place, found)) for name, found in places.items()}
    form = ClientConventionForm({"name": own.name, **values})
    return {"name": own.name, **values} if form.is_valid() and form.convention == own else None


def write_place(fact: Fact) -> str:
    """The name of a header without more, else the whole pointer."""
    text = write_fact(fact)
    name = text.removeprefix("/headers/")
    return name if len(fact.pointer) == 2 and fact.pointer[0] == "headers" else text

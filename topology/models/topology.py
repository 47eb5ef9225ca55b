"""A topology: one use of a pattern on one broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, cast

from django.db import models

from topology.definitions import PROBE_PREFIX, TAP_PREFIX, Definitions, Identity
from topology.delays import format_delay, format_span
from topology.message import Forwarder
from topology.models.broker import Broker
from topology.patterns.names import as_stored
from topology.patterns.pattern import ParamsError, Pattern
from topology.patterns.table import KINDS
from topology.provisioning.probes import probe_definitions
from topology.structure.copies import Tap
from topology.structure.taps import DEFAULT_TAP, NO_TAP, TapType, tap_definitions


class State(models.TextChoices):
    PLANNED = "planned", "planned"
    APPLYING = "applying", "being applied"
    APPLIED = "applied", "applied"
    DELETED = "deleted", "deleted"


class Probing(models.TextChoices):
    """`ending`: no new probes; the queue stays until those on the way have arrived."""

    OFF = "", "disabled"
    ON = "on", "enabled"
    ENDING = "ending", "being disabled"


DEFAULT_PROBE_MINUTES = 5


class Topology(models.Model):
    """`params` are texts as the pattern's `parse` takes them; `owned` lists the objects we created.

    An identity is added to `owned` before its object is created: after an apply that died halfway,
    the teardown knows every object as ours. `tap_type` is "" until the first apply; an adopted
    topology has none until a user enables recording. `is_adopted`: it was taken over as others had
    made it, and this stays so whatever is created or recorded later.

    `tap_name` is the name of the tap queue where it differs from the usual one. `retired_tap` is
    the tap that this queue replaced, until the recorder has read its last copy.
    """

    broker = models.ForeignKey(Broker, models.PROTECT, related_name="topologies")
    slug = models.SlugField(max_length=80, unique=True, editable=False)
    kind = models.CharField(max_length=40)
    name = models.CharField(max_length=255)
    params = models.JSONField()
    owned = models.JSONField(default=list)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PLANNED)
    tap_type = models.CharField(max_length=10, blank=True, default="", editable=False)
    tap_name = models.CharField(max_length=120, blank=True, default="", editable=False)
    retired_tap = models.CharField(max_length=120, blank=True, default="", editable=False)
    probing = models.CharField(
        max_length=10, choices=Probing.choices, blank=True, default="", editable=False
    )
    probe_minutes = models.PositiveSmallIntegerField(default=DEFAULT_PROBE_MINUTES, editable=False)
    keep_bodies = models.BooleanField(default=False, editable=False)
    is_adopted = models.BooleanField(default=False, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    applied_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name", "pk")
        verbose_name_plural = "topologies"

    def __str__(self) -> str:
        return self.name

    @property
    def pattern(self) -> Pattern:
        """Raises ParamsError for a kind that this version does not have."""
        try:
            return KINDS[self.kind]
        except KeyError as error:
            raise ParamsError({"": f"The pattern “{self.kind}” does not exist."}) from error

    @property
    def parsed(self) -> Any:
        """The pattern's Params. Raises ParamsError on a row that no longer reads."""
        with as_stored():
            return self.pattern.parse(self.params)

    @property
    def title(self) -> str:
        """What its pattern calls it; `name` differs if another topology of the broker had that."""
        try:
            return self.pattern.title(self.parsed)
        except ParamsError:
            return self.name

    @property
    def tap_queue(self) -> str:
        return self.tap_name or TAP_PREFIX + self.slug

    @property
    def definitions(self) -> Definitions:
        """Everything that should exist, the tap and the probe queue included."""
        return self.definitions_with(self.tap_type or DEFAULT_TAP)

    def definitions_with(self, tap_type: str) -> Definitions:
        """The same with a tap of this type."""
        own = self.pattern.definitions(self.parsed) | self.tap_with(tap_type)
        return own | self.probe_definitions if self.probing else own

    @property
    def probe_queue(self) -> str:
        return PROBE_PREFIX + self.slug

    @property
    def probe_definitions(self) -> Definitions:
        """The probe queue and its bindings, whether probes are enabled or not."""
        return probe_definitions(self.pattern, self.parsed, self.probe_queue)

    @property
    def tap(self) -> Definitions:
        """The tap alone."""
        return self.tap_with(self.tap_type or DEFAULT_TAP)

    def tap_with(self, tap_type: str) -> Definitions:
        """The tap alone; nothing for a type that is none."""
        if tap_type == NO_TAP:
            return Definitions()
        taps = self.pattern.taps(self.parsed)
        return tap_definitions(self.tap_queue, taps, cast(TapType, tap_type))

    @property
    def taps(self) -> Sequence[Tap]:
        """Where it is tapped, or will be when it is applied."""
        return () if self.tap_type == NO_TAP else self.pattern.taps(self.parsed)

    @property
    def has_tap(self) -> bool:
        """Whether anything of it is recorded, or will be when it is applied."""
        return bool(self.taps)

    def as_retired(self, tap_type: TapType) -> Topology:
        """A copy whose tap is the retired one: to read it, never to be saved."""
        return self.with_tap(tap_type, self.retired_tap)

    def with_tap(self, tap_type: TapType, name: str) -> Topology:
        """A copy with another tap: to plan it, never to be saved."""
        other = copy(self)
        other.tap_type, other.tap_name = tap_type, name
        return other

    def with_params(self, params: Mapping[str, str]) -> Topology:
        """A copy with other parameters: to plan it, never to be saved."""
        other = copy(self)
        other.params = dict(params)
        return other

    @property
    def is_recordable(self) -> bool:
        """Whether it has no tap and could have one."""
        return self.tap_type == NO_TAP and bool(self.pattern.taps(self.parsed))

    @property
    def forwarders(self) -> Sequence[Forwarder]:
        """The consumers that we run for it: none for one that others made and read themselves."""
        return () if self.is_adopted else self.pattern.forwarders(self.parsed)

    @property
    def is_read_by_others(self) -> bool:
        """Whether messages leave it only through a consumer that is not ours.

        The broker has no information on what that consumer does, or by which header.
        """
        return self.is_adopted and bool(self.pattern.forwarders(self.parsed))

    @property
    def observes_arrivals(self) -> bool:
        """Whether a tap sees all that comes out of its delays."""
        return any(tap.phase == "exit" and not tap.destination for tap in self.taps)

    @property
    def tapped_destinations(self) -> frozenset[str]:
        """The destinations with an exit tap of their own."""
        return frozenset(tap.destination for tap in self.taps if tap.destination)

    @classmethod
    def unobserved(cls) -> list[Topology]:
        """The applied topologies whose deliveries are not observed."""
        rows = cls.objects.exclude(state=State.PLANNED).select_related("broker")
        return [row for row in rows if not row.observes_arrivals]

    @property
    def summary(self) -> str:
        """The delays in a few words: those on offer, or the longest that can be had."""
        params = self.parsed
        offered = self.pattern.delays(params)
        if offered and not any(offered):
            return self.pattern.describe_no_delay(params)
        if not offered:
            longest = self.pattern.longest(params)
            return f"any up to {format_span(longest)}"
        more = f" and {len(offered) - 4} more" if len(offered) > 4 else ""
        return ", ".join(format_delay(delay) for delay in offered[:4]) + more

    @property
    def stated(self) -> list[tuple[str, str]]:
        """The parameters as (label, words), without those that are empty."""
        texts = ((field, self.params.get(field.name, "")) for field in self.pattern.FIELDS)
        return [(field.label, dict(field.choices).get(text, text)) for field, text in texts if text]

    @property
    def owned_identities(self) -> frozenset[Identity]:
        return frozenset(tuple(identity) for identity in self.owned)

    def own(self, identities: Collection[Identity]) -> None:
        """Add to `owned`; does not save."""
        self.owned = sorted(map(list, self.owned_identities | frozenset(identities)))

    def disown(self, identities: Collection[Identity]) -> None:
        """Take out of `owned`; does not save."""
        self.owned = sorted(map(list, self.owned_identities - frozenset(identities)))

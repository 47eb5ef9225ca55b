"""A topology: one use of a pattern on one broker."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.db import models

from topology.definitions import TAP_PREFIX, Definitions, Identity
from topology.models.broker import Broker
from topology.patterns import PATTERNS
from topology.patterns.pattern import Pattern
from topology.provisioning.taps import tap_definitions


class State(models.TextChoices):
    PLANNED = "planned", "planned"
    APPLYING = "applying", "being applied"
    APPLIED = "applied", "applied"
    TORN_DOWN = "torn_down", "torn down"


class Topology(models.Model):
    """`params` are texts as the pattern's `parse` takes them; `owned` lists what we created.

    An identity is put into `owned` before the thing is created, so that an apply that dies
    half-way leaves nothing that the teardown would not know as ours.
    """

    broker = models.ForeignKey(Broker, models.PROTECT, related_name="topologies")
    slug = models.SlugField(max_length=80, unique=True, editable=False)
    kind = models.CharField(max_length=40)
    name = models.CharField(max_length=255)
    params = models.JSONField()
    owned = models.JSONField(default=list)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PLANNED)
    created_at = models.DateTimeField(auto_now_add=True)
    applied_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name", "pk")
        verbose_name_plural = "topologies"

    def __str__(self) -> str:
        return self.name

    @property
    def pattern(self) -> Pattern:
        return PATTERNS[self.kind]

    @property
    def parsed(self) -> Any:
        """The pattern's Params. Raises ParamsError on a row that no longer reads."""
        return self.pattern.parse(self.params)

    @property
    def tap_queue(self) -> str:
        return TAP_PREFIX + self.slug

    @property
    def definitions(self) -> Definitions:
        """Everything that should exist, the tap included."""
        return self.pattern.definitions(self.parsed) | self.tap

    @property
    def tap(self) -> Definitions:
        return tap_definitions(self.tap_queue, self.pattern.taps(self.parsed))

    @property
    def owned_identities(self) -> frozenset[Identity]:
        return frozenset(tuple(identity) for identity in self.owned)

    def own(self, identities: Collection[Identity]) -> None:
        """Add to `owned`; does not save."""
        self.owned = sorted(map(list, self.owned_identities | frozenset(identities)))

    def disown(self, identities: Collection[Identity]) -> None:
        """Take out of `owned`; does not save."""
        self.owned = sorted(map(list, self.owned_identities - frozenset(identities)))

"""Imports of foreign logs, and mappings that were saved by name."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from analytics.mappings.mapping import (
    QUALITIES,
    LogMapping,
    MappingError,
    load_shipped,
    parse,
    shipped_names,
)

# Folder of uploads. It is in the log, which has room; its name keeps every reader of days out.
UPLOADS = "_uploads"


class SavedMapping(models.Model):
    """A mapping of a user, in TOML. Its name is none of the shipped ones."""

    name = models.SlugField(max_length=60, unique=True)
    text = models.TextField()
    updated_at = models.DateTimeField(auto_now=True)
    updated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


def find_mapping(name: str) -> LogMapping:
    """The mapping with this name, a shipped one or a saved one. Raises MappingError."""
    if name in shipped_names():
        return load_shipped(name)
    saved = SavedMapping.objects.filter(name=name).first()
    if saved is None:
        known = ", ".join(shipped_names())
        raise MappingError(f"The mapping “{name}” does not exist. Shipped: {known}.")
    return parse(saved.text, saved.name)


class LogImport(models.Model):
    """A file that was uploaded or imported, and what came of it.

    `path` is where an upload lies on `host` until it is imported or deleted; "" for a file of the
    command. `work` is the dry run or import that was requested last. Without `mapping_text` the
    file has events.
    """

    file_name = models.CharField(max_length=255)
    bytes = models.BigIntegerField(default=0)
    path = models.CharField(max_length=500, blank=True)
    host = models.CharField(max_length=100, blank=True)
    broker = models.ForeignKey("topology.Broker", models.CASCADE, null=True, related_name="+")
    topology = models.CharField(max_length=255, blank=True)
    mapping_name = models.CharField(max_length=60, blank=True)
    mapping_text = models.TextField(blank=True)
    is_dry = models.BooleanField(default=False)
    is_imported = models.BooleanField(default=False)
    result = models.JSONField(default=dict)
    """Counts, problems, days, topologies and quality of the last dry run or import."""
    work = models.ForeignKey("topology.Work", models.SET_NULL, null=True, related_name="+")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.file_name

    @property
    def is_at_work(self) -> bool:
        return self.work is not None and not self.work.is_ended

    @property
    def version(self) -> str:
        """Changes with what a page shows of its progress."""
        own = self.work
        return f"{own.pk}-{own.state}-{own.done}-{own.total}" if own else ""

    @property
    def notes(self) -> list[str]:
        """What the log cannot know, as sentences."""
        return [QUALITIES[name] for name in self.result.get("quality", ()) if name in QUALITIES]

    @property
    def problems(self) -> list[dict[str, Any]]:
        return list(self.result.get("problems", ()))

"""A broker: one vhost, its address, and the environment that it belongs to."""

from __future__ import annotations

from functools import partial

from django.db import models

from topology.broker.address import Address
from topology.models.read_only import refuse_read_only
from topology.models.secrets import open_secret, seal_secret


class Palette(models.TextChoices):
    """Colours of an environment, by name: the style sheet has a class for each."""

    SLATE = "slate", "Slate"
    GREEN = "green", "Green"
    AMBER = "amber", "Amber"
    RED = "red", "Red"
    VIOLET = "violet", "Violet"
    BLUE = "blue", "Blue"


class Broker(models.Model):
    """One vhost. Its slug never changes and is never given to another."""

    slug = models.SlugField(max_length=60, unique=True, editable=False)
    name = models.CharField(max_length=100)
    environment = models.CharField(max_length=30, default="development")
    colour = models.CharField(max_length=10, choices=Palette.choices, default=Palette.SLATE)
    is_production = models.BooleanField(default=False)
    is_read_only = models.BooleanField(default=False)
    host = models.CharField(max_length=255)
    port = models.PositiveIntegerField(default=5672)
    vhost = models.CharField(max_length=255, default="/")
    management_url = models.CharField(max_length=500)
    username = models.CharField(max_length=255)
    sealed_password = models.TextField(blank=True, editable=False)
    tls = models.BooleanField(default=False)
    verify_tls = models.BooleanField(default=True)
    ca_certificate = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    findings_checked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("name", "pk")

    def __str__(self) -> str:
        return self.name

    def set_password(self, plain: str) -> None:
        self.sealed_password = seal_secret(plain)

    @property
    def address(self) -> Address:
        """Raises DecryptionError when the key for its password is missing."""
        return Address(
            host=self.host,
            port=self.port,
            vhost=self.vhost,
            username=self.username,
            password=open_secret(self.sealed_password),
            management_url=self.management_url,
            tls=self.tls,
            verify_tls=self.verify_tls,
            ca_certificate=self.ca_certificate,
            before_change=partial(refuse_read_only, self.pk),
        )

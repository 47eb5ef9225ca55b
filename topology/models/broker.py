"""A broker: one vhost, its addresses, its account, and the environment that it belongs to."""

from __future__ import annotations

from functools import partial

from django.db import models

from topology.broker.address import Address, SignIn, parse_hosts, parse_management_urls
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
    """One vhost. Its slug never changes and is never given to another.

    `amqp_addresses` ("host:port") and `management_urls` have one for each node, separated by
    commas. `silent` are those that do not answer the worker: the address -> why and since when.
    """

    class SignIns(models.TextChoices):
        """How RabbitMQ knows Delayboard."""

        PASSWORD = SignIn.PASSWORD, "User and password"
        CERTIFICATE = SignIn.CERTIFICATE, "Client certificate (EXTERNAL)"
        TOKEN = SignIn.TOKEN, "OAuth 2 token"

    slug = models.SlugField(max_length=60, unique=True, editable=False)
    name = models.CharField(max_length=100)
    environment = models.CharField(max_length=30, default="development")
    colour = models.CharField(max_length=10, choices=Palette.choices, default=Palette.SLATE)
    is_production = models.BooleanField(default=False)
    is_read_only = models.BooleanField(default=False)
    needs_approval = models.BooleanField(default=False)
    amqp_addresses = models.CharField(max_length=2000)
    vhost = models.CharField(max_length=255, default="/")
    management_urls = models.CharField(max_length=4000)
    username = models.CharField(max_length=255)
    sealed_password = models.TextField(blank=True, editable=False)
    tls = models.BooleanField(default=False)
    verify_tls = models.BooleanField(default=True)
    ca_certificate = models.TextField(blank=True)
    server_name = models.CharField(max_length=255, blank=True, default="")
    sign_in = models.CharField(max_length=12, choices=SignIns.choices, default=SignIns.PASSWORD)
    client_certificate = models.TextField(blank=True, default="")
    sealed_client_key = models.TextField(blank=True, editable=False, default="")
    token_url = models.CharField(max_length=500, blank=True, default="")
    token_scope = models.CharField(max_length=500, blank=True, default="")
    silent = models.JSONField(default=dict, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)
    findings_checked_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("name", "pk")

    def __str__(self) -> str:
        return self.name

    def set_password(self, plain: str) -> None:
        self.sealed_password = seal_secret(plain)

    def set_client_key(self, plain: str) -> None:
        self.sealed_client_key = seal_secret(plain)

    @property
    def management_url(self) -> str:
        """The first address of the management API, for commands to copy."""
        return parse_management_urls(self.management_urls)[0]

    @property
    def address(self) -> Address:
        """Raises DecryptionError when the key for its secrets is missing."""
        (host, port), *others = parse_hosts(self.amqp_addresses, tls=self.tls)
        management_url, *other_urls = parse_management_urls(self.management_urls) or [""]
        return Address(
            host=host,
            port=port,
            vhost=self.vhost,
            username=self.username,
            password=open_secret(self.sealed_password),
            management_url=management_url,
            tls=self.tls,
            verify_tls=self.verify_tls,
            ca_certificate=self.ca_certificate,
            before_change=partial(refuse_read_only, self.pk),
            others=tuple(others),
            other_management_urls=tuple(other_urls),
            sign_in=SignIn(self.sign_in),
            client_certificate=self.client_certificate,
            client_key=open_secret(self.sealed_client_key),
            server_name=self.server_name,
            token_url=self.token_url,
            token_scope=self.token_scope,
            doubted=frozenset(self.silent),
        )

"""Who may do what on which broker. Every view checks permissions here, on the server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeAlias

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from structlog.contextvars import bind_contextvars

from topology.models import Broker, Grant, Role
from topology.models.read_only import ReadOnly, refuse_read_only

User: TypeAlias = AbstractBaseUser | AnonymousUser
View: TypeAlias = Callable[..., HttpResponse]


def remember_grants(*users: User) -> None:
    """Read the grants once and keep them on these objects, which must not outlive a page.

    A grant that is withdrawn later still counts for that page.
    """
    found = _read_grants(users)
    for user in users:
        if user.is_authenticated:
            user.remembered_grants = found[user.pk]  # type: ignore[attr-defined]


def limit_grants(user: User, role: Role, brokers: Collection[int] | None) -> None:
    """Keep the grants on this object as `remember_grants` does, with at most this role.

    They hold only on the brokers with these ids, unless this is None.
    """
    held = _grants(user)
    if brokers is not None:
        held = {pk: max(held.get(pk, 0), held.get(None, 0)) for pk in brokers}
    limited = {pk: min(grant, role) for pk, grant in held.items() if grant}
    user.remembered_grants = limited  # type: ignore[union-attr]


def _grants(user: User) -> Mapping[int | None, int]:
    """The role by broker id; the key None means every broker."""
    remembered: Mapping[int | None, int] | None = getattr(user, "remembered_grants", None)
    return _read_grants([user])[user.pk] if remembered is None else remembered


def _read_grants(users: Collection[User]) -> Mapping[int | None, Mapping[int | None, int]]:
    """The grants of these users by their ids, in one query."""
    found: dict[int | None, dict[int | None, int]] = {user.pk: {} for user in users}
    asked = set()
    for user in users:
        if user.is_authenticated and user.is_active:
            if getattr(user, "is_superuser", False):
                found[user.pk] = {None: Role.ADMIN}
            else:
                asked.add(user.pk)
    if asked:
        rows = Grant.objects.filter(user__in=asked)
        for pk, broker, role in rows.values_list("user", "broker", "role"):
            found[pk][broker] = role
    return found


def read_rights(user: User) -> frozenset[tuple[int | None, int]]:
    """Broker and role of each grant, None for all brokers; equal for users who may do the same."""
    return frozenset(_grants(user).items())


def role_for(user: User, broker: Broker | None) -> Role | None:
    """The highest role on a broker; with None the one that holds for every broker."""
    return _highest(_grants(user), broker.pk if broker else None)


def roles_for(user: User, brokers: Collection[Broker]) -> dict[int, Role | None]:
    """The highest role on each of these brokers, by their ids; in one query for all of them."""
    grants = _grants(user)
    return {broker.pk: _highest(grants, broker.pk) for broker in brokers}


def _highest(grants: Mapping[int | None, int], broker: int | None) -> Role | None:
    role = max(grants.get(broker, 0), grants.get(None, 0))
    return Role(role) if role else None


def may(user: User, broker: Broker | None, role: Role) -> bool:
    grant = role_for(user, broker)
    return grant is not None and grant >= role


def visible_brokers(user: User, role: Role = Role.VIEWER) -> QuerySet[Broker]:
    """The brokers on which the user holds at least this role."""
    grants = _grants(user)
    if grants.get(None, 0) >= role:
        return Broker.objects.all()
    return Broker.objects.filter(
        pk__in=[pk for pk, grant in grants.items() if pk and grant >= role]
    )


def _find_broker(brokers: Iterable[Broker], slug: str) -> Broker | None:
    """Return the one that an address names by its slug; None when it names none.

    Raises Http404 for a slug of no broker of these, so that no other takes its place.
    """
    if not slug:
        return None
    for broker in brokers:
        if broker.slug == slug:
            return broker
    raise Http404(
        f"The broker “{slug}” does not exist, or you have no access. Check the name, or ask an "
        "administrator for access."
    )


class BrokerChoice(NamedTuple):
    """The brokers that a page may show, and the one that its address names."""

    visible: list[Broker]
    chosen: Broker | None

    @property
    def shown(self) -> list[Broker]:
        return [self.chosen] if self.chosen else self.visible

    @property
    def only(self) -> Broker | None:
        """The one broker that is shown; None where a page has a column for the broker."""
        return self.shown[0] if len(self.shown) == 1 else None


def choose_brokers(request: HttpRequest, role: Role = Role.VIEWER) -> BrokerChoice:
    """Raises Http404 where the address names no broker on which the user has the role."""
    visible = list(visible_brokers(request.user, role))
    return BrokerChoice(visible, _find_broker(visible, request.GET.get("broker", "")))


def may_audit(user: User) -> bool:
    """Admins of all brokers read the whole audit log, those of some what was done to these."""
    return any(role >= Role.ADMIN for role in _grants(user).values())


def require(
    user: User, broker: Broker | None, role: Role, *, request: HttpRequest | None = None
) -> None:
    """Raises Http404 for a broker the user may not even see, PermissionDenied otherwise.

    A POST `request` is a change, which a read-only switch refuses. Lines of the log have the
    broker's id from here on.
    """
    if broker is not None:
        bind_contextvars(broker_id=broker.pk)
    grant = role_for(user, broker)
    if grant is None and broker is not None:
        raise Http404
    if grant is None or grant < role:
        raise PermissionDenied(f"This action needs the role {role.label.lower()}.")
    if request is not None and request.method == "POST" and role > Role.VIEWER:
        try:
            refuse_read_only(broker.pk if broker else None)
        except ReadOnly as reason:
            raise PermissionDenied(str(reason)) from reason


def production_refusal(
    broker: Broker,
    typed: str,
    next_step: str = "Type the broker name to confirm.",
    *,
    is_needed: bool = False,
) -> str:
    """Return why an action on a production broker is refused; "" when its name was typed.

    Any other broker needs no typed name, unless the action does (`is_needed`).
    """
    if typed == broker.name or not (broker.is_production or is_needed):
        return ""
    if not broker.is_production:
        return f"This action needs a confirmation. {next_step}"
    return f"{broker.name} is a production broker ({broker.environment}). {next_step}"


def with_broker(role: Role, *, changes: bool = True) -> Callable[[View], View]:
    """A view of `/<broker slug>/`: hands it the Broker, if the user holds the role on it.

    Without `changes`, a POST changes no message and no object of the broker: read-only allows it.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(
            request: HttpRequest, broker_slug: str, *args: Any, **kwargs: Any
        ) -> HttpResponse:
            broker = get_object_or_404(Broker, slug=broker_slug)
            require(request.user, broker, role, request=request if changes else None)
            return view(request, broker, *args, **kwargs)

        return guarded

    return decorate


def everywhere(role: Role) -> Callable[[View], View]:
    """A view that needs the role on every broker."""

    def decorate(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            require(request.user, None, role)
            return view(request, *args, **kwargs)

        return guarded

    return decorate

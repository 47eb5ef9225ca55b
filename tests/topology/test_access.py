from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.test import RequestFactory

from tests.builders import make_broker, make_user
from topology import access
from topology.models import Broker, Grant, Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def here() -> Broker:
    return make_broker(name="Here")


@pytest.fixture
def there(here: Broker) -> Broker:
    return make_broker(name="There")


def person(who: str, here: Broker) -> User | AnonymousUser:
    """An account by what it is: "viewer here", "admin everywhere", "closed", ..."""
    role, _, where = who.partition(" ")
    if role == "anonymous":
        return AnonymousUser()
    if role == "superuser":
        return User.objects.create_superuser("root", password="a long enough password")
    known = {role.name.lower(): role for role in Role}
    user = make_user("ann", known.get(role), None if where == "everywhere" else here)
    if role == "closed":
        Grant.objects.create(user=user, role=Role.ADMIN, broker=here)
        Grant.objects.create(user=user, role=Role.ADMIN)
        user.is_active = False
        user.save()
    return user


NONE, VIEWER, OPERATOR, ADMIN = None, Role.VIEWER, Role.OPERATOR, Role.ADMIN
MATRIX: list[tuple[str, Role | None, Role | None]] = [
    ("anonymous", NONE, NONE),
    ("nobody", NONE, NONE),
    ("closed", NONE, NONE),
    ("viewer here", VIEWER, NONE),
    ("operator here", OPERATOR, NONE),
    ("admin here", ADMIN, NONE),
    ("viewer everywhere", VIEWER, VIEWER),
    ("operator everywhere", OPERATOR, OPERATOR),
    ("admin everywhere", ADMIN, ADMIN),
    ("superuser", ADMIN, ADMIN),
]


@pytest.mark.parametrize(("who", "on_here", "on_all"), MATRIX)
def test_a_role_holds_on_its_broker_or_on_all(
    here: Broker, there: Broker, who: str, on_here: Role | None, on_all: Role | None
) -> None:
    user = person(who, here)
    held = [access.role_for(user, broker) for broker in (here, there, None)]
    assert held == [on_here, on_all, on_all]
    for broker, role in ((here, on_here), (there, on_all), (None, on_all)):
        for wanted in Role:
            assert access.may(user, broker, wanted) == (role is not None and role >= wanted)


@pytest.mark.parametrize(("who", "on_here", "on_all"), MATRIX)
def test_only_brokers_with_the_role_are_visible(
    here: Broker, there: Broker, who: str, on_here: Role | None, on_all: Role | None
) -> None:
    user = person(who, here)
    for wanted in Role:
        expected = {
            broker
            for broker, role in ((here, on_here), (there, on_all))
            if role is not None and role >= wanted
        }
        assert set(access.visible_brokers(user, wanted)) == expected


def test_the_highest_of_several_roles_counts(here: Broker, there: Broker) -> None:
    user = make_user("ann", Role.ADMIN, here)
    Grant.objects.create(user=user, role=Role.VIEWER)
    assert access.role_for(user, here) == Role.ADMIN
    assert access.role_for(user, there) == Role.VIEWER
    assert list(access.visible_brokers(user, Role.OPERATOR)) == [here]
    assert set(access.visible_brokers(user)) == {here, there}


def test_a_page_reads_the_grants_once_and_the_next_one_anew(
    here: Broker, there: Broker, django_assert_num_queries: Any
) -> None:
    user = make_user("ann", Role.ADMIN, here)
    access.remember_grants(user)
    Grant.objects.all().delete()
    with django_assert_num_queries(0):
        assert access.roles_for(user, [here, there]) == {here.pk: Role.ADMIN, there.pk: None}
        assert access.may_audit(user)
    assert list(access.visible_brokers(user)) == [here]
    assert access.role_for(User.objects.get(), here) is None


def test_the_grants_of_many_are_read_in_one_query(
    here: Broker, there: Broker, django_assert_num_queries: Any
) -> None:
    users = [make_user("ann", Role.ADMIN, here), make_user("bob", Role.VIEWER)]
    users += [make_user("eve"), make_user("joe", Role.ADMIN)]
    users[-1].is_active = False
    with django_assert_num_queries(1):
        access.remember_grants(*users, AnonymousUser())
        roles = [access.roles_for(user, [here, there]) for user in users]
    assert [tuple(role.values()) for role in roles] == [
        (Role.ADMIN, None),
        (Role.VIEWER, Role.VIEWER),
        (None, None),
        (None, None),
    ]


@pytest.mark.parametrize("broker", [True, False])
def test_a_person_has_one_role_on_a_broker(here: Broker, broker: bool) -> None:
    where = here if broker else None
    user = make_user("ann", Role.VIEWER, where)
    with pytest.raises(IntegrityError), transaction.atomic():
        Grant.objects.create(user=user, role=Role.ADMIN, broker=where)


@access.with_broker(Role.OPERATOR)
def touch(request: HttpRequest, broker: Broker) -> HttpResponse:
    """A view that says which broker it was handed."""
    return HttpResponse(broker.slug)


@access.everywhere(Role.ADMIN)
def rule(request: HttpRequest) -> HttpResponse:
    """A view for those who rule everywhere."""
    return HttpResponse("ruled")


def asked_by(user: Any) -> HttpRequest:
    request = RequestFactory().get("/")
    request.user = user
    return request


@pytest.mark.parametrize(("who", "on_here", "on_all"), MATRIX)
def test_a_view_hides_what_may_not_be_seen_and_forbids_what_may(
    here: Broker, there: Broker, who: str, on_here: Role | None, on_all: Role | None
) -> None:
    request = asked_by(person(who, here))
    for broker, role in ((here, on_here), (there, on_all)):
        if role is None:
            with pytest.raises(Http404):
                touch(request, broker.slug)
        elif role < Role.OPERATOR:
            with pytest.raises(PermissionDenied, match="needs the role operator"):
                touch(request, broker.slug)
        else:
            assert touch(request, broker.slug).content == broker.slug.encode()
    with pytest.raises(Http404):
        touch(request, "no-such-broker")


@pytest.mark.parametrize(("who", "on_here", "on_all"), MATRIX)
def test_a_view_for_all_brokers_needs_the_role_on_all(
    here: Broker, who: str, on_here: Role | None, on_all: Role | None
) -> None:
    request = asked_by(person(who, here))
    if on_all == Role.ADMIN:
        assert rule(request).content == b"ruled"
    else:
        with pytest.raises(PermissionDenied, match="needs the role admin"):
            rule(request)
    assert on_here is None or on_all is None or on_here == on_all


@pytest.mark.parametrize("who", [who for who, _, _ in MATRIX])
def test_roles_on_many_brokers_are_those_on_each(who: str, here: Broker, there: Broker) -> None:
    user = person(who, here)
    each = {broker.pk: access.role_for(user, broker) for broker in (here, there)}
    assert access.roles_for(user, [here, there]) == each
    assert access.roles_for(user, []) == {}


def test_of_two_grants_the_higher_holds_on_many_brokers_too(here: Broker, there: Broker) -> None:
    user = make_user("ann", Role.OPERATOR)
    Grant.objects.create(user=user, role=Role.ADMIN, broker=here)
    Grant.objects.create(user=user, role=Role.VIEWER, broker=there)
    held = {here.pk: Role.ADMIN, there.pk: Role.OPERATOR}
    assert access.roles_for(user, [here, there]) == held


@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("nobody", False),
        ("closed", False),
        ("operator everywhere", False),
        ("operator here", False),
        ("admin here", True),
        ("admin everywhere", True),
        ("superuser", True),
    ],
)
def test_who_is_admin_of_any_broker_reads_the_audit_log(
    here: Broker, who: str, expected: bool
) -> None:
    assert access.may_audit(person(who, here)) == expected


def test_an_admin_of_all_brokers_reads_the_audit_log_before_the_first() -> None:
    assert access.may_audit(make_user("ann", Role.ADMIN))


def test_a_slug_chooses_its_broker_and_no_other(here: Broker, there: Broker) -> None:
    def choose(user: User, **named: str) -> access.BrokerChoice:
        request = RequestFactory().get("/", named)
        request.user = user
        return access.choose_brokers(request)

    ann, vera = make_user("ann", Role.VIEWER), make_user("vera", Role.VIEWER, here)
    assert choose(ann, broker=there.slug).shown == [there]
    assert choose(ann) == ([here, there], None)
    assert choose(ann).shown == [here, there]
    with pytest.raises(Http404, match="broker “there” does not exist"):
        choose(vera, broker=there.slug)


def test_an_action_on_production_is_refused_until_the_name_is_typed(here: Broker) -> None:
    assert access.production_refusal(here, "") == ""
    here.is_production = True
    for typed in ("", "here", "There"):
        assert access.production_refusal(here, typed) == (
            "Here is a production broker (test). Type the broker name to confirm."
        )
    assert access.production_refusal(here, "Here") == ""
    assert access.production_refusal(here, "", "Use --confirm.").endswith("(test). Use --confirm.")

"""Which host records what, and what of its log nobody else can read, on pages and by command."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from analytics.log import name_of, take_lock
from analytics.models import LogHost
from analytics.models.log_host import count_live
from analytics.recorder.follow import Follower
from delayboard.models import BackgroundTask
from delayboard.now.system import find_host_problems, list_hosts
from tests.builders import make_broker, make_user
from topology.management.exit_codes import BadInput
from topology.models import Role, Work, WorkState
from topology.models.work import TASK

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def hosts(settings: Settings) -> None:
    now = timezone.now()
    shared = {"seen_at": now, "is_sending": True, "keys": settings.KEYS_FINGERPRINT}
    LogHost.objects.create(name="web1", **shared)
    LogHost.objects.create(name="web2", **shared)
    task = BackgroundTask.objects.create(key="record:orders", name="Recorder of orders")
    Work.objects.create(kind=TASK, subject=task.pk, owner="web2/2", state=WorkState.RUNNING)


def sentences() -> list[str]:
    return [problem.sentence for problem in find_host_problems(timezone.now())]


def change(name: str, **values: object) -> None:
    LogHost.objects.filter(name=name).update(**values)


def test_the_page_has_each_host_with_its_recorders(client: Client) -> None:
    broker = make_broker()
    client.force_login(make_user("ada", Role.VIEWER, broker))
    page = client.get(reverse("system")).content.decode()
    table = page.partition('id="hosts"')[2]
    assert table.index("web1") < table.index("web2") < table.index("Recorder of orders")
    LogHost.objects.filter(name="web2").delete()
    assert 'id="hosts"' not in client.get(reverse("system")).content.decode()


def test_hosts_that_work_are_no_problem() -> None:
    assert sentences() == []


def test_what_others_cannot_read_is_a_problem_with_the_host_and_since_when() -> None:
    long_ago = timezone.now() - timedelta(hours=3)
    change("web1", seen_at=long_ago)
    change("web2", unsent_since=long_ago)
    silent, unsent = sentences()
    assert "worker on web1 has sent no heartbeat since" in silent
    assert "web2 has not moved its event log since" in unsent
    change("web1", has_ended=True)
    change("web2", unsent_since=None, is_sending=False)
    (missing,) = sentences()
    assert missing.startswith("LOG_URL is not set on web2")


def test_a_worker_with_other_keys_is_a_problem() -> None:
    change("web2", keys="other")
    (sentence,) = sentences()
    assert "Set the same SECRET_KEY and CREDENTIAL_KEYS" in sentence


def test_the_lines_say_what_is_not_in_the_list() -> None:
    change("web1", seen_at=timezone.now() - timedelta(hours=3), unread_bytes=2000)
    change("web2", has_ended=True)
    first, second = list_hosts(list(BackgroundTask.objects.all()))
    assert (first.status, first.unread) == (
        "No heartbeat",
        "2.0\xa0kB at the last heartbeat, unknown since",
    )
    assert (second.status, second.unread, second.records) == (
        "Stopped",
        "none",
        ("Recorder of orders",),
    )


@pytest.mark.both_databases
@pytest.mark.parametrize("hours", [-1, 1])
def test_hosts_agree_on_who_lives_whatever_their_clocks_say(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory, hours: int
) -> None:
    settings.EVENT_LOG = tmp_path_factory.mktemp("log")
    wrong, other_clock = name_of(settings.EVENT_LOG), timezone.now() + timedelta(hours=hours)
    change("web2", seen_at=timezone.now() - timedelta(minutes=1))
    with time_machine.travel(other_clock):
        Follower(settings.EVENT_LOG).report()
        seen_there = {line.host.name: line.status for line in list_hosts([])}
        assert count_live(wrong) == 2
    assert seen_there == {line.host.name: line.status for line in list_hosts([])}
    assert seen_there == {wrong: "Running", "web1": "Running", "web2": "No heartbeat"}
    assert count_live("web1") == 2


def printed(*arguments: str) -> str:
    out = StringIO()
    call_command("log_hosts", *arguments, stdout=out)
    return out.getvalue()


def test_a_host_is_forgotten_when_it_does_not_run(settings: Settings) -> None:
    assert "web2: running; recorders: 1" in printed()
    with pytest.raises(BadInput, match="Stop it first"):
        printed("--forget", "web1")
    with pytest.raises(BadInput, match="no host web9"):
        printed("--forget", "web9")
    change("web1", has_ended=True)
    assert "forgotten web1" in printed("--forget", "web1")
    assert "A single host records" in printed()


def test_a_host_leaves_only_without_its_worker(
    settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings.EVENT_LOG = tmp_path_factory.mktemp("log")
    LogHost.objects.create(name=name_of(settings.EVENT_LOG), seen_at=timezone.now())
    with (
        take_lock(settings.EVENT_LOG, "index"),
        pytest.raises(BadInput, match="The worker of this host runs"),
    ):
        printed("--leave")
    assert "is indexed" in printed("--leave")
    assert LogHost.objects.count() == 2

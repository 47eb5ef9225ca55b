"""Feature flags that are off, TLS by an unknown authority, TLS where none is expected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.faults.odd_node import OddNode, odd_node
from tests.publishing import publisher
from topology.broker.address import Address
from topology.broker.errors import Unsupported
from topology.broker.management.client import Management
from topology.definitions import Arguments, Definitions, Queue
from topology.operations.connect import try_connection


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddNode]:
    with odd_node(tmp_path_factory.mktemp("odd")) as running:
        yield running


def said(address: Address) -> list[tuple[bool, str]]:
    return [(trial.works, trial.sentence) for trial in try_connection(address)]


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_a_feature_flag_that_is_off_is_named_with_what_switches_it_on(
    odd: OddNode, kind: str
) -> None:
    queue = Queue("q", arguments=Arguments({"x-queue-type": kind}))
    sentence = f"feature flag {kind}_queue is not enabled.*rabbitmqctl enable_feature_flag all"
    with Management(odd.plain) as management, pytest.raises(Unsupported, match=sentence):
        management.declare_queue(queue)
    with pytest.raises(Unsupported, match=sentence), publisher(odd.plain, "test") as channel:
        channel.declare(Definitions.of([queue]))


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_certificate_of_an_unknown_authority_is_refused_until_it_is_given(odd: OddNode) -> None:
    (amqp_works, amqp), (api_works, api) = said(odd.secure)
    assert (amqp_works, api_works) == (False, False)
    assert all("is not trusted" in text and "Enter the CA" in text for text in (amqp, api))
    known = replace(odd.secure, ca_certificate=odd.certificate)
    assert [works for works, _ in said(known)] == [True, True]
    assert [works for works, _ in said(replace(odd.secure, verify_tls=False))] == [True, True]


def test_a_certificate_of_another_host_is_refused(odd: OddNode) -> None:
    other = replace(odd.secure, host="localhost", ca_certificate=odd.certificate)
    (works, sentence), _ = said(other)
    assert not works
    assert "is for another host" in sentence


def test_no_tls_where_it_is_expected(odd: OddNode) -> None:
    secure = odd.secure
    plain = replace(
        secure, tls=False, management_url=secure.management_url.replace("https", "http")
    )
    (amqp_works, amqp), (api_works, api) = said(plain)
    assert (amqp_works, api_works) == (False, False)
    assert "heck port and TLS" in amqp
    assert "needs TLS. Enter an address with https" in api

from __future__ import annotations

import pytest

from topology.broker.address import Address, AddressError, check_management_url, parse_address

MANAGEMENT = "http://h:15672"


@pytest.mark.parametrize(
    ("url", "host", "port", "vhost", "username", "password"),
    [
        ("amqp://h", "h", 5672, "/", "guest", "guest"),
        ("amqp://h/", "h", 5672, "/", "guest", "guest"),
        ("amqp://u:p@h:1/v", "h", 1, "v", "u", "p"),
        ("amqps://u:p@h/v", "h", 5671, "v", "u", "p"),
        ("amqp://u:p%40%2f%25@h/%2f", "h", 5672, "/", "u", "p@/%"),
        ("amqp://%C3%BC:p@h/a%2Fb%20c", "h", 5672, "a/b c", "ü", "p"),
        ("amqp://u:p@[::1]:5673/v", "::1", 5673, "v", "u", "p"),
        ("AMQP://u:p@HOST/V", "host", 5672, "V", "u", "p"),
    ],
)
def test_an_amqp_address_is_taken_apart(
    url: str, host: str, port: int, vhost: str, username: str, password: str
) -> None:
    address = parse_address(url, "http://h:15672/")
    assert (address.host, address.port, address.vhost) == (host, port, vhost)
    assert (address.username, address.password) == (username, password)
    assert address.tls == url.startswith("amqps")
    assert address.management_url == MANAGEMENT


@pytest.mark.parametrize(
    "url", ["", "h", "http://h", "amqp://", "amqp:///v", "amqp://[::1", "amqp://u:p@[bad]/v"]
)
def test_what_is_no_amqp_address_is_refused(url: str) -> None:
    with pytest.raises(AddressError, match="must look like amqp://user:password@host/vhost"):
        parse_address(url, MANAGEMENT)


@pytest.mark.parametrize(
    "url", ["amqp://u:p@h/v?heartbeat=5", "amqps://h?verify=verify_none", "amqp://u:p#w@h/v"]
)
def test_options_of_an_address_are_refused_and_not_dropped(url: str) -> None:
    with pytest.raises(AddressError, match="and Delayboard takes none there"):
        parse_address(url, MANAGEMENT)
    with pytest.raises(AddressError, match="must end after the host, the port and a path"):
        check_management_url("https://h:15671/?cacertfile=x")


@pytest.mark.parametrize("port", ["65536", "x", "-1"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(AddressError, match="not a number up to 65535"):
        parse_address(f"amqp://h:{port}/v", MANAGEMENT)


@pytest.mark.parametrize("url", ["", "h:15672", "ftp://h", "http://", "http://[::1"])
def test_what_is_no_management_address_is_refused(url: str) -> None:
    with pytest.raises(AddressError, match="must look like http://host:15672"):
        check_management_url(url)


def test_a_password_in_the_management_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(AddressError, match="must not contain a user name or password") as raised:
        check_management_url("http://u:hunter2@h:15672")
    assert "hunter2" not in str(raised.value)


def test_a_password_is_not_in_the_representation() -> None:
    assert "hunter2" not in repr(Address("h", 1, "/", "u", "hunter2"))


def test_a_certificate_that_is_none_is_refused_with_a_sentence() -> None:
    with pytest.raises(AddressError, match="not readable PEM text"):
        Address("h", 1, "/", "u", "p", ca_certificate="-----nonsense").ssl_context()


def test_verification_can_be_switched_off() -> None:
    context = Address("h", 1, "/", "u", "p", verify_tls=False).ssl_context()
    assert not context.check_hostname
    assert Address("h", 1, "/", "u", "p").ssl_context().check_hostname


def test_an_address_has_several_nodes() -> None:
    address = parse_address("amqp://u:p@one:1,two,[::1]:3/v", "http://one:15672,http://two")
    assert [one.amqp_name for one in address.amqp_nodes] == ["one:1", "two:5672", "[::1]:3"]
    urls = [one.management_url for one in address.management_nodes]
    assert urls == ["http://one:15672", "http://two"]
    assert address.where == "one:1, two:5672 or [::1]:3"
    default = parse_address("amqps://u:p@one:1,one:2,two/v")
    assert [one.management_url for one in default.management_nodes] == [
        "https://one:15671",
        "https://two:15671",
    ]


def test_a_node_of_the_management_api_has_its_own_amqp_address() -> None:
    address = parse_address("amqp://one:1,two:2", "http://one,http://two")
    assert [one.port for one in address.management_nodes] == [1, 2]

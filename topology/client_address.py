"""The address that a request comes from."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address, ip_network

from django.http import HttpRequest

# A provider gives one customer a whole network of IPv6 (RFC 6177: a /64 at least).
NETWORK_BITS = 64


def client_address(request: HttpRequest | None) -> str | None:
    """The IPv4 address, or the network's first of an IPv6 address; None when there is none.

    Headers are not read: behind a proxy uvicorn has put the client's address in its place,
    if it trusts the proxy (FORWARDED_ALLOW_IPS).
    """
    text = request.META.get("REMOTE_ADDR", "") if request is not None else ""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, NETWORK_BITS), strict=False).network_address)

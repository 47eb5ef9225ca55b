"""What certificates in PEM text say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from cryptography import x509

from topology.broker.address import AddressError

# Time before the end of a certificate from which it is reported: an operator needs it to renew.
RENEWAL_TIME = timedelta(days=30)


@dataclass(frozen=True)
class Certificate:
    """`subject` as RFC 4514 writes it; `expires_at` in UTC."""

    subject: str
    expires_at: datetime


@lru_cache(maxsize=64)
def read_certificates(pem: str) -> Sequence[Certificate]:
    """Read all certificates in the text, in order. Raises AddressError."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        return [Certificate(x.subject.rfc4514_string(), x.not_valid_after_utc) for x in found]
    except ValueError as error:
        raise AddressError("The certificate is not readable PEM text.") from error

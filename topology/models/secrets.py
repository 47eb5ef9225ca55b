"""Secrets at rest: sealed before they are stored, opened only when they are needed."""

from __future__ import annotations

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings

from topology.broker.errors import BrokerError


class DecryptionError(BrokerError):
    """No key in CREDENTIAL_KEYS opens the stored text."""


def cipher() -> MultiFernet:
    return MultiFernet([Fernet(key) for key in settings.CREDENTIAL_KEYS])


def open_secret(stored: str) -> str:
    """Raises DecryptionError rather than ever hand the ciphertext on as a password."""
    if not stored:
        return ""
    try:
        return cipher().decrypt(stored.encode()).decode()
    except InvalidToken as error:
        raise DecryptionError(
            "The stored password cannot be decrypted: CREDENTIAL_KEYS lacks the key that "
            "encrypted it. Put the key back, or enter the password again."
        ) from error


def seal_secret(plain: str) -> str:
    return cipher().encrypt(plain.encode()).decode() if plain else ""

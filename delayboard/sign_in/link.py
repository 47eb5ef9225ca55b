"""Links that sign a local account in, made by a command on the server.

For the day on which passwords are hidden and the provider does not answer. A link ends after ten
minutes, with its use, and with a new password.
"""

from __future__ import annotations

from django.contrib.auth.models import User
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.core import signing

VALID_MINUTES = 10
SALT = "delayboard.sign_in.link"


class InvalidLink(Exception):
    """The link is not valid; the message explains the next step."""


class _LinkToken(PasswordResetTokenGenerator):
    key_salt = SALT


_tokens = _LinkToken()


def make_link_token(user: User) -> str:
    """What names the account in a query, as it is; the time of its last sign-in is in it."""
    return signing.dumps([user.pk, _tokens.make_token(user)], salt=SALT)


def read_link(token: str) -> User:
    """Raises InvalidLink for one that has ended, was used, or was never made."""
    try:
        pk, made = signing.loads(token, salt=SALT, max_age=VALID_MINUTES * 60)
    except (signing.BadSignature, ValueError):
        pk, made = 0, ""
    user = User.objects.filter(pk=pk, is_active=True).first()
    if user is None or not _tokens.check_token(user, made):
        raise InvalidLink(
            "This link has ended or was used. Make another one with manage.py sign_in_link."
        )
    return user

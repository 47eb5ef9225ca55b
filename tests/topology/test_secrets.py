from __future__ import annotations

import pytest
from cryptography.fernet import Fernet
from pytest_django import Settings

from tests.builders import make_broker
from topology.models import Broker
from topology.models.secrets import DecryptionError, open_secret, seal_secret

pytestmark = pytest.mark.both_databases

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


@pytest.mark.django_db
def test_what_is_stored_is_not_the_password_and_opens_to_it(settings: Settings) -> None:
    settings.CREDENTIAL_KEYS = [OLD]
    broker = make_broker()
    broker.set_password("hunter2-ü")
    broker.save()
    stored = Broker.objects.get()
    assert "hunter2" not in stored.sealed_password
    assert stored.address.password == "hunter2-ü"
    assert "hunter2" not in repr(stored.address)


@pytest.mark.django_db
def test_with_a_wrong_key_there_is_an_error_and_no_password(settings: Settings) -> None:
    settings.CREDENTIAL_KEYS = [OLD]
    broker = make_broker()
    settings.CREDENTIAL_KEYS = [NEW]
    with pytest.raises(DecryptionError, match="CREDENTIAL_KEYS lacks the key") as raised:
        _ = broker.address
    assert broker.sealed_password not in str(raised.value)


@pytest.mark.parametrize("stored", ["hunter2", "gAAAAA==", "ü"])
def test_a_text_that_was_never_sealed_is_not_taken_for_a_password(
    settings: Settings, stored: str
) -> None:
    settings.CREDENTIAL_KEYS = [OLD]
    with pytest.raises(DecryptionError):
        open_secret(stored)


def test_a_new_key_in_front_opens_the_old_secrets_and_seals_the_new_ones(
    settings: Settings,
) -> None:
    settings.CREDENTIAL_KEYS = [OLD]
    before = seal_secret("p")
    settings.CREDENTIAL_KEYS = [NEW, OLD]
    after = seal_secret("p")
    assert open_secret(before) == open_secret(after) == "p"
    settings.CREDENTIAL_KEYS = [NEW]
    assert open_secret(after) == "p"
    with pytest.raises(DecryptionError):
        open_secret(before)


def test_the_same_password_is_sealed_differently_each_time_and_an_empty_one_not_at_all() -> None:
    assert seal_secret("p") != seal_secret("p")
    assert (seal_secret(""), open_secret("")) == ("", "")

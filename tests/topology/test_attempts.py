"""The number of failures in the headers that client libraries write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topology.clients.describe import count_failures

REDELIVERY_STAMP = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\RedeliveryStamp"


def stamps(*counts: object) -> dict[str, Any]:
    return {REDELIVERY_STAMP: json.dumps([{"retryCount": count} for count in counts])}


def test_the_last_stamp_in_a_body_of_php_counts() -> None:
    stamp = r"O:1:\"RedeliveryStamp\":1:{s:65:\"\0Symfony\\RedeliveryStamp\0retryCount\";i:%d;}"
    body = f"{stamp % 1}{stamp % 2}".encode()
    assert count_failures({}, "orders", body) == 2
    assert count_failures({}, "orders", b"RedeliveryStamp") == 0


@pytest.mark.parametrize(
    ("headers", "failures"),
    [
        ({"NServiceBus.Retries": "2"}, 2),
        ({"MT-Redelivery-Count": 3}, 3),
        ({"laravel": {"attempts": 1}}, 1),
        ({"laravel": {"attempts": 0}}, 0),
        ({"rascal": {"recovery": {"orders": {"forwarded": 4}}}}, 4),
        ({"rascal": {"recovery": {"others": {"forwarded": 4}}}}, 0),
        (stamps(1, 2), 2),
        (stamps(), 0),
        (stamps("2"), 2),
        ({"laravel": [1], "rascal": "x", REDELIVERY_STAMP: "["}, 0),
        ({REDELIVERY_STAMP: "[" * 9000}, 0),
        ({REDELIVERY_STAMP: "[1]"}, 0),
        ({REDELIVERY_STAMP: 5, "MT-Redelivery-Count": True}, 0),
    ],
)
def test_each_library_s_own_count_is_read(headers: dict[str, Any], failures: int) -> None:
    assert count_failures(headers, "orders") == failures

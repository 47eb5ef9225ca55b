"""The request body that switches a vhost's firehose without changing other metadata: pure.

The PUT that switches the firehose also sets the vhost's metadata, and resets what it omits (tried):
description and tags become empty on 3.10.8, 4.0.5 and 4.3.6, and the default queue type becomes the
node's on 4.3.6 (4.0.5 keeps it; 3.10.8 has none, reports “undefined” and ignores a value). Limits,
permissions and the protection from deletion stay on all versions. Tags are accepted as a list or as
one text with commas; only a list keeps a tag that contains a comma.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topology.broker.errors import Unsupported

NO_QUEUE_TYPE = (None, "", "undefined")


def make_tracing_update(vhost: Mapping[str, Any], *, on: bool) -> dict[str, Any]:
    """The body that switches tracing and repeats everything else as it was read.

    Raises Unsupported for tags that 3.10 would corrupt: it reads their UTF-8 as Latin-1.
    """
    metadata = vhost.get("metadata")
    kept = metadata if isinstance(metadata, Mapping) else {}
    tags = vhost.get("tags")
    tags = list(tags) if isinstance(tags, list) else []
    queue_type = kept.get("default_queue_type")
    if "default_queue_type" not in kept and not all(str(tag).isascii() for tag in tags):
        raise Unsupported(
            "This virtual host has tags with non-ASCII characters, which this version of "
            "RabbitMQ would corrupt. Run `rabbitmqctl trace_on -p` or `trace_off -p` with its "
            "name on the broker."
        )
    body = {"tracing": on, "description": vhost.get("description") or "", "tags": tags}
    return body if queue_type in NO_QUEUE_TYPE else body | {"default_queue_type": queue_type}

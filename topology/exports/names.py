"""Names of resources in other tools, made of names in RabbitMQ."""

from __future__ import annotations

import hashlib
import re

from topology.definitions import Identity


class NotExportable(ValueError):
    """The tool cannot represent an object; the message says which and why in one sentence."""


def resource_name(identity: Identity, separator: str, longest: int) -> str:
    """A name of a-z, digits and separators, the same for the same object.

    It ends in a digest, since several names of RabbitMQ may be alike without their signs.
    """
    readable = re.sub(r"[^a-z0-9]+", separator, "-".join(identity[:5]).lower()).strip(separator)
    digest = hashlib.sha256("\0".join(identity).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{readable[: longest - 9].strip(separator)}{separator}{digest}"

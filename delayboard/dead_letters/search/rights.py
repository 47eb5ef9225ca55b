"""What a user may search: a search in redacted values would reveal them."""

from __future__ import annotations

from datetime import UTC, datetime

from delayboard.dead_letters.parked.redact_cause import hidden_columns
from delayboard.dead_letters.search.match import GROUP_COLUMNS
from delayboard.dead_letters.search.query import Condition, Query, QueryError, parse
from topology import access, redaction
from topology.access import User
from topology.models import Broker, Role
from topology.redaction import Redaction

# The parts of a name that could be the name of a header.
MOST_STEPS = 20
# The headers that a derived field may reveal.
COLUMNS = GROUP_COLUMNS | {"deaths": "deaths", "died-at": "died_at"}


def check(user: User, broker: Broker, query: Query) -> None:
    """Raises QueryError."""
    hidden = redaction.rules_for(user, broker)
    for condition in query.conditions:
        if hides(hidden, condition):
            raise QueryError(
                f"A redaction rule hides “{condition.field}”, so you cannot search it."
            )
    if not query.reads_content:
        return
    if not access.may(user, broker, Role.OPERATOR):
        raise QueryError(
            "Searching in headers and bodies needs the role operator. You can search other fields."
        )
    if query.words and not hidden.is_empty:
        raise QueryError(
            "Redaction rules hide headers or body values, so you cannot search for words. "
            "Search a field, such as reason:rejected or header.tenant:42."
        )


def reveals(hidden: Redaction, text: str) -> bool:
    """Whether a query that others wrote may itself hold something of what is hidden."""
    if hidden.is_empty:
        return False
    try:
        query = parse(text, datetime.now(UTC))
    except QueryError:
        return True
    return bool(query.words) or any(hides(hidden, one) for one in query.conditions)


def hides(hidden: Redaction, condition: Condition) -> bool:
    """Whether a rule redacts the field, or anything that it may mean.

    A dot in a name also counts as a separator of names: the index does not distinguish them.
    """
    if not condition.is_content:
        return COLUMNS.get(condition.field) in hidden_columns(hidden)
    kind, _, path = condition.field.partition(".")
    steps = path.split(".")
    if len(steps) > MOST_STEPS:
        return True
    if kind == "body":
        return any(hidden.hides_body_path(".".join(steps[: end + 1])) for end in range(len(steps)))
    return any(
        hidden.hides_header(".".join(steps[start : end + 1]))
        for start in range(len(steps))
        for end in range(start, len(steps))
    )

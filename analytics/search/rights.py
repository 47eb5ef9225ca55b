"""What a user may search: a search in redacted values would reveal them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from analytics.search.query import Condition, Fields, Query, QueryError, parse
from topology.redaction import Redaction

# Most parts of a name that could be the name of a header.
MOST_STEPS = 20


def find_refusal(hidden: Redaction, query: Query, hidden_fields: Collection[str] = ()) -> str:
    """Why a reader from whom the rules hide values may not use the query; "" when allowed.

    `hidden_fields` are those of the list that show what is hidden.
    """
    for one in query.conditions:
        if one.field in hidden_fields or _hides(hidden, one):
            return f"A redaction rule hides “{one.field}”, so you cannot search it."
    if query.words and not hidden.is_empty:
        return (
            "Redaction rules hide headers or body values, so you cannot search for words. "
            "Search a field, such as header.tenant:42."
        )
    return ""


def reveals(
    hidden: Redaction, text: str, fields: Fields, hidden_fields: Collection[str] = ()
) -> bool:
    """Whether a query that others wrote may itself hold something of what is hidden."""
    if hidden.is_empty:
        return False
    try:
        return bool(find_refusal(hidden, parse(text, datetime.now(UTC), fields), hidden_fields))
    except QueryError:
        return True


def _hides(hidden: Redaction, condition: Condition) -> bool:
    """Whether a rule redacts the header or value, or anything that it may mean.

    A dot in a name also counts as a separator of names: the index does not distinguish them.
    """
    if not condition.is_content:
        return False
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

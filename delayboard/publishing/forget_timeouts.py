"""What is known of imported lines, forgotten when nobody will import them again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db import transaction
from django.db.models import Q

from analytics.retention.holdings import Holding
from analytics.retention.rules import Rule
from delayboard.models import ImportedTimeout

# A transaction writes for some hundredths of a second, then others may.
BATCH = 500
IMPORTS = Rule(
    "Imported timeouts",
    "KEEP_IMPORTS_DAYS",
    365,
    "By which a second import leaves out what was published before: a line that is imported again "
    "after so long is published again.",
)


def imports_held() -> Holding:
    """What there is of them."""
    rows = ImportedTimeout.objects.all()
    first = rows.order_by("begun_at").values_list("begun_at", flat=True).first()
    return Holding(IMPORTS, "row", rows.count(), first)


def forget_timeouts(now: datetime, alive: Callable[[], None] = lambda: None) -> int:
    """Delete the rows of lines that were due and last begun or published so long ago; how many.

    `alive` is called between batches, and may raise to stop. Raises BadSetting.
    """
    cutoff = IMPORTS.cutoff(now)
    if cutoff is None:
        return 0
    handled = Q(published_at__lt=cutoff) | Q(published_at=None, begun_at__lt=cutoff)
    past = ImportedTimeout.objects.filter(handled, due_at__lt=cutoff)
    total = 0
    while keys := list(past.order_by("pk").values_list("pk", flat=True)[:BATCH]):
        with transaction.atomic():
            total += past.filter(pk__in=keys).delete()[0]
        alive()
    return total

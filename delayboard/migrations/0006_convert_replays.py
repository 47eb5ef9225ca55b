import uuid
from collections import Counter

from django.db import migrations
from django.db.models import F
from django.utils import timezone

CANCELLED = (
    "Replays go out of the journal since this version: park the messages, and replay them there."
)


def convert(apps, schema_editor):
    """Replays of live queues become ended ones without letters; what still ran is cancelled."""
    batches = apps.get_model("delayboard", "ReplayBatch")
    works = apps.get_model("topology", "Work")
    now = timezone.now()
    for batch in batches.objects.all():
        _routes(apps, batch)
        work = works.objects.filter(pk=batch.work_id).first()
        is_ended = work is not None and work.state in ("done", "failed", "cancelled")
        if not is_ended:
            batch.items.filter(state="pending").update(
                state="cancelled", ended_at=now, error=CANCELLED
            )
            batch.state_why = CANCELLED
        batch.items.filter(state="publishing").update(
            state="cancelled",
            may_be_duplicated=True,
            ended_at=now,
            error="It may have been published, or not: this version cannot go on with it.",
        )
        batch.items.filter(state="confirmed").update(state="done", ended_at=now)
        batch.items.filter(state="gone").update(state="failed")
        if work is not None and not is_ended:
            works.objects.filter(pk=work.pk).update(
                state="cancelled", error=CANCELLED, ended_at=now, fence=F("fence") + 1
            )
        counts = Counter(batch.items.values_list("state", flat=True))
        for state in ("done", "returned", "nacked", "failed", "cancelled"):
            setattr(batch, state, counts[state])
        batch.uid = uuid.uuid4()
        batch.selected = counts.total()
        batch.doubled = batch.items.filter(may_be_duplicated=True).count()
        batch.said = f"messages of {batch.queue}"
        batch.state = "done" if work is not None and work.state == "done" else "cancelled"
        batch.state_at = (work.ended_at if work is not None else None) or now
        batch.started_at = work.created_at if work is not None else None
        batch.save()


def _routes(apps, batch):
    routes = apps.get_model("delayboard", "ReplayRoute")
    columns = ("target_exchange", "target_key", "target_why", "verdict", "verdict_is_good")
    kinds = Counter(batch.items.values_list(*columns))
    for values, number in kinds.items():
        exchange, key, why, verdict, is_good = values
        route = routes.objects.create(
            batch=batch,
            exchange=exchange,
            routing_key=key,
            why=why,
            verdict=verdict,
            is_good=is_good,
            items_number=number,
        )
        batch.items.filter(**dict(zip(columns, values, strict=True))).update(route=route)


class Migration(migrations.Migration):
    dependencies = [("delayboard", "0005_replays_of_letters")]
    operations = [migrations.RunPython(convert, migrations.RunPython.noop)]

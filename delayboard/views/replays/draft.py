"""Drafts of replays: made of what was chosen, changed, edited message by message, started."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from analytics.events import clean
from delayboard.dead_letters.replay import batch_state, make_draft, targets
from delayboard.dead_letters.replay import options as optional
from delayboard.dead_letters.replay.batch_state import BatchError
from delayboard.dead_letters.replay.options import OptionError, Options
from delayboard.dead_letters.search import QueryError
from delayboard.models import MessageGroup, ReplayBatch
from delayboard.models.replay import REMAINING
from delayboard.views.confirm_production import Effect, confirmed_on_production
from delayboard.views.queue_page import queue_page
from delayboard.views.replays.batches import batch_page, with_batch
from delayboard.views.replays.options import is_sent, options_sent, sent_options
from delayboard.views.show_refusal import show_refusal
from topology import access
from topology.content.text import count_of, count_text
from topology.database import paging
from topology.models import Broker, Role
from topology.views.redirect_back import next_of

LONGEST_QUERY = 500
# Most messages of one request, more than a page of messages has.
MOST_PARKED_MESSAGES = 1000
ASKED = "Another operator opens this page, checks the dry run and starts the replay."
CHANGED = (
    "The options changed, so Delayboard repeated the dry run and published nothing. "
    "Check the new dry run, then start the replay."
)


@require_POST
@access.with_broker(Role.OPERATOR)
def parked_messages_replay(request: HttpRequest, broker: Broker) -> HttpResponse:
    """A draft of selected messages, of a group, or of all that match a search.

    A typed exchange and key replace the original ones. `newest` excludes messages that came after
    the page was made; `edit` leads to editing the first.
    """
    back = next_of(request, reverse("parked_messages", args=[broker.slug]))
    sent = request.POST
    newest = paging.row_number(sent.get("newest", ""))
    group = paging.row_number(sent.get("group", ""))
    user = request.user

    def make() -> ReplayBatch:
        options = _target(request)
        if group is not None:
            found = get_object_or_404(MessageGroup, pk=group, broker=broker)
            return make_draft.draft_group(user, found, options, newest)
        if sent.get("all") == "1":
            query = sent.get("q", "").replace("\x00", "")[:LONGEST_QUERY]
            return make_draft.draft_query(user, broker, query, options, newest)
        keys = [paging.row_number(text) for text in sent.getlist("parked_message")]
        chosen = [key for key in keys if key is not None][:MOST_PARKED_MESSAGES]
        return make_draft.draft_messages(user, broker, chosen, options)

    return _drafted(request, make, back, edits=sent.get("edit") == "1")


@require_POST
@access.with_broker(Role.OPERATOR)
def replay_prepare(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Park the chosen messages of a live queue, and freeze them into a draft."""
    name = clean(request.POST.get("name", ""))
    back = queue_page(broker, name)
    handles = request.POST.getlist("message")

    def make() -> ReplayBatch:
        return make_draft.draft_peeked(request.user, broker, name, handles, _target(request))

    return _drafted(request, make, back)


@require_POST
@with_batch(Role.OPERATOR)
def replay_rest(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    """A draft of what a batch did not bring off, with its options."""
    remaining = batch.items.filter(state__in=REMAINING, parked_message__isnull=False)
    keys = list(remaining.values_list("parked_message_id", flat=True)[: make_draft.MOST_CHOSEN])
    if len(keys) < remaining.count():
        messages.warning(request, f"The draft contains only the first {len(keys)} messages.")
    options = optional.read_batch_options(batch)
    back = reverse("replay_batch", args=[batch.pk])
    return _drafted(
        request,
        lambda: make_draft.draft_messages(request.user, batch.broker, keys, options),
        back,
    )


@require_POST
@with_batch(Role.OPERATOR)
def replay_options(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    """Other options for a draft, which is judged again."""
    try:
        make_draft.change_options(request.user, batch, sent_options(request, batch))
    except OptionError as error:
        return batch_page(request, batch, options=options_sent(request, batch, error))
    except BatchError as error:
        messages.error(request, f"Nothing was changed. {error}")
    return _back_to(batch, request)


def _back_to(batch: ReplayBatch, request: HttpRequest) -> HttpResponse:
    """To the draft, where the chosen way to begin stays chosen."""
    once = "?plan=once" if request.POST.get("plan") == "once" else ""
    return redirect(reverse("replay_batch", args=[batch.pk]) + once)


def _describe_replay(_request: HttpRequest, batch: ReplayBatch) -> Effect:
    number = count_of(batch.pending, "parked message", "is")
    sentence = f"{number} published in the virtual host {batch.broker.vhost}."
    if batch.excluded:
        sentence += f" Possible repeats that remain parked: {count_text(batch.excluded)}."
    return Effect(sentence, reverse("replay_batch", args=[batch.pk]))


@require_POST
@with_batch(Role.OPERATOR)
@confirmed_on_production("Start replay", _describe_replay)
def replay_start(request: HttpRequest, batch: ReplayBatch) -> HttpResponse:
    """Start a draft, if it is as the dry run was looked at."""
    typed = request.POST.get("typed", "").strip().lower()
    try:
        if batch.is_draft and is_sent(request):
            options, known = sent_options(request, batch), optional.read_batch_options(batch)
            if options.checked_values != known.checked_values:
                make_draft.change_options(request.user, batch, options)
                messages.warning(request, CHANGED)
                return _back_to(batch, request)
            if options != known:
                make_draft.change_sending(request.user, batch, options)
        if "reason" in request.POST:
            texts = (request.POST.get(name, "") for name in ("name", "reason", "link"))
            batch_state.describe(batch, *(clean(text).strip() for text in texts))
        approves = request.POST.get("approves", "")
        batch_state.start(request.user, batch, despite_verdict=typed == "yes", approves=approves)
        batch.refresh_from_db()
        if batch.is_draft:
            messages.success(request, f"{batch.broker} needs a second person. {ASKED}")
    except OptionError as error:
        return batch_page(request, batch, options=options_sent(request, batch, error))
    except BatchError as error:
        messages.error(request, f"Not started. {error}")
    return redirect("replay_batch", pk=batch.pk)


@require_POST
@access.with_broker(Role.OPERATOR)
def group_redirect(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    """Where the messages of a group go by default; with `clear=1` where they came from."""
    group = get_object_or_404(MessageGroup, pk=pk, broker=broker)
    exchange, key = (clean(request.POST.get(name, "")).strip() for name in ("exchange", "key"))
    if request.POST.get("clear") == "1":
        if targets.clear_redirect(request.user, group):
            messages.success(request, "Redirect deleted. Replays use the original target again.")
    else:
        with show_refusal(request, "Nothing was saved.", OptionError):
            targets.redirect_group(request.user, group, exchange, key)
            messages.success(request, "Redirect saved. The next dry run uses the new target.")
    return redirect("message_group", broker.slug, group.pk)


def _drafted(
    request: HttpRequest, make: Callable[[], ReplayBatch], back: str, *, edits: bool = False
) -> HttpResponse:
    try:
        made = make()
    except (BatchError, OptionError, QueryError) as error:
        messages.error(request, f"The replay was not prepared. {error}")
        return redirect(back)
    if edits and made.is_draft and made.pending:
        return redirect("replay_item", pk=made.pk, position=1)
    return redirect("replay_batch", pk=made.pk)


def _target(request: HttpRequest) -> Options:
    """Where they go and how many, as typed beside what was chosen. Raises OptionError."""
    exchange, key = (request.POST.get(name, "").strip() for name in ("exchange", "routing_key"))
    is_typed = request.POST.get("target", "typed" if exchange or key else "") == "typed"
    typed = {"mode": "typed", "exchange": exchange, "key": key} if is_typed else {}
    part = {name: request.POST.get(name, "") for name in ("limit", "order")}
    return optional.read_options(typed | part)

"""The addresses of the site."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as accounts
from django.urls import include, path
from django.views.generic import RedirectView

from delayboard.sign_in.throttle import GuardedForm
from delayboard.views import (
    account,
    firehose,
    now,
    publish,
    redaction,
    retention,
    scheduled_changes,
)
from delayboard.views.dead_letters import (
    groups,
    message,
    messages,
    overview,
    parking,
    peek,
    queues,
    retrying,
    transfer,
)
from delayboard.views.replays import batches, draft, edit

handler500 = "delayboard.views.errors.show_server_error"
urlpatterns = [
    path("", now.now, name="now"),
    path("retention/", retention.retention, name="retention"),
    path("login/", accounts.LoginView.as_view(authentication_form=GuardedForm), name="login"),
    path("logout/", accounts.LogoutView.as_view(), name="logout"),
    path("password/", account.PasswordView.as_view(), name="password"),
    # The admin's own page of this kind would leave no entry in the audit log.
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("scheduled/changes/", scheduled_changes.scheduled_changes, name="scheduled_changes"),
    path("scheduled/changes/new/", scheduled_changes.scheduled_change, name="scheduled_change"),
    path(
        "scheduled/changes/<int:pk>/undo/",
        scheduled_changes.scheduled_change_undo,
        name="scheduled_change_undo",
    ),
    path("publish/", publish.publish, name="publish"),
    path("publications/<uuid:pk>/", publish.publication, name="publication"),
    path("dead-letters/", overview.dead_letters, name="dead_letters"),
    path(
        "dead-letters/<slug:broker_slug>/queue/", peek.dead_letter_queue, name="dead_letter_queue"
    ),
    path(
        "dead-letters/<slug:broker_slug>/replay/",
        draft.replay_prepare,
        name="replay_prepare",
    ),
    path(
        "dead-letters/<slug:broker_slug>/replay-queue/",
        draft.queue_replay,
        name="queue_replay",
    ),
    path(
        "dead-letters/<slug:broker_slug>/decide/",
        queues.dead_letter_queue_decide,
        name="dead_letter_queue_decide",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/merge/",
        groups.merge_message_groups,
        name="merge_message_groups",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/undo-merge/",
        groups.undo_merge,
        name="undo_merge",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/",
        groups.message_group,
        name="message_group",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/edit/",
        groups.message_group_edit,
        name="message_group_edit",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/redirect/",
        draft.group_redirect,
        name="group_redirect",
    ),
    path("dead-letters/<slug:broker_slug>/watch/", parking.watch, name="watch"),
    path("dead-letters/<slug:broker_slug>/park/", parking.park, name="park"),
    path("dead-letters/<slug:broker_slug>/parkings/<int:pk>/", parking.parking, name="parking"),
    path(
        "dead-letters/<slug:broker_slug>/parkings/<int:pk>/cancel/",
        parking.parking_cancel,
        name="parking_cancel",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/", messages.parked_messages, name="parked_messages"
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/searches/",
        messages.parked_message_searches,
        name="parked_message_searches",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/export/",
        transfer.parked_messages_export,
        name="parked_messages_export",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/import/",
        transfer.parked_messages_import,
        name="parked_messages_import",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/replay/",
        draft.parked_messages_replay,
        name="parked_messages_replay",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/discard/",
        parking.parked_messages_discard,
        name="parked_messages_discard",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/restore/",
        parking.parked_messages_restore,
        name="parked_messages_restore",
    ),
    path(
        "dead-letters/<slug:broker_slug>/changes/<int:pk>/",
        parking.parked_messages_change,
        name="parked_messages_change",
    ),
    path(
        "dead-letters/<slug:broker_slug>/changes/<int:pk>/cancel/",
        parking.parked_messages_change_cancel,
        name="parked_messages_change_cancel",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/<int:pk>/",
        message.parked_message,
        name="parked_message",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/<int:pk>/body/",
        message.parked_message_body,
        name="parked_message_body",
    ),
    path("dead-letters/<slug:broker_slug>/redaction/", redaction.redaction, name="redaction"),
    path(
        "dead-letters/<slug:broker_slug>/redaction/change/",
        redaction.redaction_rule_change,
        name="redaction_rule_change",
    ),
    path("retrying/", retrying.retrying_anywhere, name="retrying_anywhere"),
    path("retrying/<slug:broker_slug>/", retrying.retrying, name="retrying"),
    path("replays/", batches.replays, name="replays"),
    path("replays/<int:pk>/", batches.replay_batch, name="replay_batch"),
    path("replays/<int:pk>/options/", draft.replay_options, name="replay_options"),
    path("replays/<int:pk>/start/", draft.replay_start, name="replay_start"),
    path("replays/<int:pk>/pause/", batches.replay_pause, name="replay_pause"),
    path("replays/<int:pk>/resume/", batches.replay_resume, name="replay_resume"),
    path("replays/<int:pk>/cancel/", batches.replay_cancel, name="replay_cancel"),
    path("replays/<int:pk>/rest/", draft.replay_rest, name="replay_rest"),
    path("replays/<int:pk>/messages/<int:position>/", edit.replay_item, name="replay_item"),
    path("brokers/<slug:broker_slug>/firehose/", firehose.firehose, name="firehose"),
    path(
        "brokers/<slug:broker_slug>/firehose/switch/",
        firehose.firehose_switch,
        name="firehose_switch",
    ),
    path("", include("topology.urls")),
    path("", include("analytics.urls")),
    path("admin/", admin.site.urls),
]

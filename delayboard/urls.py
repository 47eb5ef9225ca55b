"""The addresses of the site."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as accounts
from django.urls import include, path
from django.views.generic import RedirectView

from delayboard.sign_in.throttle import GuardedForm
from delayboard.views import (
    account,
    dead_letters,
    firehose,
    kept,
    letter,
    letter_groups,
    letter_queues,
    letter_transfer,
    letters,
    looks,
    masks,
    now,
    parking,
    publish,
    replay_draft,
    replay_edit,
    replays,
    retrying,
)

handler500 = "delayboard.views.errors.failed"
urlpatterns = [
    path("", now.now, name="now"),
    path("kept/", kept.kept, name="kept"),
    path("login/", accounts.LoginView.as_view(authentication_form=GuardedForm), name="login"),
    path("logout/", accounts.LogoutView.as_view(), name="logout"),
    path("password/", account.PasswordView.as_view(), name="password"),
    # The admin's own page of this kind would leave no entry in the audit log.
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("publish/", publish.publish, name="publish"),
    path("publications/<uuid:pk>/", publish.publication, name="publication"),
    path("dead-letters/", dead_letters.dead_letters, name="dead_letters"),
    path(
        "dead-letters/<slug:broker_slug>/queue/", looks.dead_letter_queue, name="dead_letter_queue"
    ),
    path(
        "dead-letters/<slug:broker_slug>/replay/",
        replay_draft.replay_prepare,
        name="replay_prepare",
    ),
    path(
        "dead-letters/<slug:broker_slug>/replay-queue/",
        replay_draft.queue_replay,
        name="queue_replay",
    ),
    path(
        "dead-letters/<slug:broker_slug>/decide/",
        letter_queues.letter_queue_decide,
        name="letter_queue_decide",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/merge/",
        letter_groups.merge_letter_groups,
        name="merge_letter_groups",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/undo-merge/",
        letter_groups.undo_merge,
        name="undo_merge",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/",
        letter_groups.letter_group,
        name="letter_group",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/edit/",
        letter_groups.letter_group_edit,
        name="letter_group_edit",
    ),
    path(
        "dead-letters/<slug:broker_slug>/groups/<int:pk>/redirect/",
        replay_draft.group_redirect,
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
    path("dead-letters/<slug:broker_slug>/parked/", letters.letters, name="letters"),
    path(
        "dead-letters/<slug:broker_slug>/parked/searches/",
        letters.letter_searches,
        name="letter_searches",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/export/",
        letter_transfer.letters_export,
        name="letters_export",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/import/",
        letter_transfer.letters_import,
        name="letters_import",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/replay/",
        replay_draft.letters_replay,
        name="letters_replay",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/discard/",
        parking.letters_discard,
        name="letters_discard",
    ),
    path(
        "dead-letters/<slug:broker_slug>/parked/restore/",
        parking.letters_restore,
        name="letters_restore",
    ),
    path(
        "dead-letters/<slug:broker_slug>/changes/<int:pk>/",
        parking.letters_change,
        name="letters_change",
    ),
    path(
        "dead-letters/<slug:broker_slug>/changes/<int:pk>/cancel/",
        parking.letters_change_cancel,
        name="letters_change_cancel",
    ),
    path("dead-letters/<slug:broker_slug>/parked/<int:pk>/", letter.letter, name="letter"),
    path(
        "dead-letters/<slug:broker_slug>/parked/<int:pk>/body/",
        letter.letter_body,
        name="letter_body",
    ),
    path("dead-letters/<slug:broker_slug>/masks/", masks.masks, name="masks"),
    path("dead-letters/<slug:broker_slug>/masks/change/", masks.mask_change, name="mask_change"),
    path("retrying/", retrying.retrying_anywhere, name="retrying_anywhere"),
    path("retrying/<slug:broker_slug>/", retrying.retrying, name="retrying"),
    path("replays/", replays.replays, name="replays"),
    path("replays/<int:pk>/", replays.replay_batch, name="replay_batch"),
    path("replays/<int:pk>/options/", replay_draft.replay_options, name="replay_options"),
    path("replays/<int:pk>/start/", replay_draft.replay_start, name="replay_start"),
    path("replays/<int:pk>/pause/", replays.replay_pause, name="replay_pause"),
    path("replays/<int:pk>/resume/", replays.replay_resume, name="replay_resume"),
    path("replays/<int:pk>/cancel/", replays.replay_cancel, name="replay_cancel"),
    path("replays/<int:pk>/rest/", replay_draft.replay_rest, name="replay_rest"),
    path("replays/<int:pk>/messages/<int:position>/", replay_edit.replay_item, name="replay_item"),
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

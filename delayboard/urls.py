"""The addresses of the site."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth import views as accounts
from django.urls import include, path
from django.views.generic import RedirectView

from delayboard.views import account, dead_letters, firehose, kept, now, publish, replays

urlpatterns = [
    path("", now.now, name="now"),
    path("kept/", kept.kept, name="kept"),
    path("login/", accounts.LoginView.as_view(), name="login"),
    path("logout/", accounts.LogoutView.as_view(), name="logout"),
    path("password/", account.PasswordView.as_view(), name="password"),
    # The admin's own page of this kind would leave no entry in the audit log.
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("publish/", publish.publish, name="publish"),
    path("publications/<uuid:pk>/", publish.publication, name="publication"),
    path("dead-letters/", dead_letters.dead_letters, name="dead_letters"),
    path(
        "dead-letters/<slug:broker_slug>/queue/",
        dead_letters.dead_letter_queue,
        name="dead_letter_queue",
    ),
    path(
        "dead-letters/<slug:broker_slug>/replay/",
        dead_letters.replay_prepare,
        name="replay_prepare",
    ),
    path("replays/", replays.replays, name="replays"),
    path("replays/<int:pk>/", replays.replay_batch, name="replay_batch"),
    path("replays/<int:pk>/start/", replays.replay_start, name="replay_start"),
    path("replays/<int:pk>/cancel/", replays.replay_cancel, name="replay_cancel"),
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

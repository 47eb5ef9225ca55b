"""The addresses of the site."""

from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from allauth.account.models import EmailAddress
from allauth.account.views import reauthenticate
from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialToken
from django.contrib import admin
from django.urls import include, path, register_converter
from django.views.generic import RedirectView

from delayboard.api.door import AnyPathConverter, api
from delayboard.api.reference import api_document, api_reference
from delayboard.views import (
    broker_start,
    delay_migration,
    demo,
    firehose,
    now,
    saved_views,
    scheduled_changes,
    search,
)
from delayboard.views.dead_letters import (
    groups,
    live_search,
    message,
    messages,
    move_queue,
    overview,
    parking,
    peek,
    queues,
    retrying,
    transfer,
)
from delayboard.views.publishing import publish
from delayboard.views.replays import batches, draft, edit
from delayboard.views.settings import (
    account,
    alerts,
    client_conventions,
    redaction,
    system,
    webhooks,
)
from delayboard.views.sign_in import groups as group_roles
from delayboard.views.sign_in import permissions, sign_in, tokens

register_converter(AnyPathConverter, "any")
handler500 = "delayboard.views.errors.show_server_error"
# What people may edit of these, other pages show.
for unused in (EmailAddress, SocialApp, SocialAccount, SocialToken, Authenticator):
    if admin.site.is_registered(unused):
        admin.site.unregister(unused)
# One page checks passwords and second factors.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]
admin.autodiscover()

_dead_letters = [
    path("queue/", peek.dead_letter_queue, name="dead_letter_queue"),
    path("live/", live_search.live_search, name="live_search"),
    path("replay/", draft.replay_prepare, name="replay_prepare"),
    path("move/", move_queue.move_queue, name="move_queue"),
    path("move/start/", move_queue.move_queue_start, name="move_queue_start"),
    path("move/stop/", move_queue.move_queue_stop, name="move_queue_stop"),
    path("decide/", queues.dead_letter_queue_decide, name="dead_letter_queue_decide"),
    path("check-queues/", queues.check_queues, name="check_queues"),
    path("groups/merge/", groups.merge_message_groups, name="merge_message_groups"),
    path("groups/<int:pk>/undo-merge/", groups.undo_merge, name="undo_merge"),
    path("groups/<int:pk>/", groups.message_group, name="message_group"),
    path("groups/<int:pk>/edit/", groups.message_group_edit, name="message_group_edit"),
    path("groups/<int:pk>/redirect/", draft.group_redirect, name="group_redirect"),
    path("watch/", parking.watch, name="watch"),
    path("park/", parking.park, name="park"),
    path("parkings/<int:pk>/", parking.parking, name="parking"),
    path("parkings/<int:pk>/cancel/", parking.parking_cancel, name="parking_cancel"),
    path("parked/", messages.parked_messages, name="parked_messages"),
    path("parked/export/", transfer.parked_messages_export, name="parked_messages_export"),
    path("parked/import/", transfer.parked_messages_import, name="parked_messages_import"),
    path("parked/replay/", draft.parked_messages_replay, name="parked_messages_replay"),
    path("parked/discard/", parking.parked_messages_discard, name="parked_messages_discard"),
    path("parked/restore/", parking.parked_messages_restore, name="parked_messages_restore"),
    path("changes/<int:pk>/", parking.parked_messages_change, name="parked_messages_change"),
    path(
        "changes/<int:pk>/cancel/",
        parking.parked_messages_change_cancel,
        name="parked_messages_change_cancel",
    ),
    path("parked/<int:pk>/", message.parked_message, name="parked_message"),
    path("parked/<int:pk>/body/", message.parked_message_body, name="parked_message_body"),
    path("redaction/", redaction.redaction, name="redaction"),
    path("redaction/change/", redaction.redaction_rule_change, name="redaction_rule_change"),
    path("clients/", client_conventions.client_conventions, name="client_conventions"),
    path("clients/save/", client_conventions.client_convention_save, name="client_convention_save"),
    path(
        "clients/delete/",
        client_conventions.client_convention_delete,
        name="client_convention_delete",
    ),
    path(
        "clients/import/",
        client_conventions.client_convention_import,
        name="client_convention_import",
    ),
    path(
        "clients/<int:pk>/export/",
        client_conventions.client_convention_export,
        name="client_convention_export",
    ),
]
_replay = [
    path("", batches.replay_batch, name="replay_batch"),
    path("options/", draft.replay_options, name="replay_options"),
    path("start/", draft.replay_start, name="replay_start"),
    path("pause/", batches.replay_pause, name="replay_pause"),
    path("resume/", batches.replay_resume, name="replay_resume"),
    path("cancel/", batches.replay_cancel, name="replay_cancel"),
    path("rest/", draft.replay_rest, name="replay_rest"),
    path("messages/<int:position>/", edit.replay_item, name="replay_item"),
]
_delay_migration = [
    path("", delay_migration.migrate_delays, name="migrate_delays"),
    path("request/", delay_migration.delay_migration_request, name="delay_migration_request"),
    path("pause/", delay_migration.delay_migration_pause, name="delay_migration_pause"),
    path("cancel/", delay_migration.delay_migration_cancel, name="delay_migration_cancel"),
    path("continue/", delay_migration.delay_migration_continue, name="delay_migration_continue"),
]
urlpatterns = [
    path("", now.now, name="now"),
    path("problems/acknowledge/", now.acknowledge, name="acknowledge"),
    path("search/", search.search, name="search"),
    path("system/", system.system, name="system"),
    path("system/look/", system.look, name="look"),
    path("demo/", demo.demo, name="demo"),
    path("demo/remove/", demo.demo_remove, name="demo_remove"),
    path("demo/tour/", demo.tour, name="tour"),
    path("alerts/", alerts.alerts, name="alerts"),
    path("alerts/receiver/", alerts.alert_receiver, name="alert_receiver"),
    path("alerts/heartbeat/", alerts.heartbeat, name="heartbeat"),
    path("alerts/<int:pk>/send/", alerts.alert_send, name="alert_send"),
    path("webhooks/", webhooks.webhooks, name="webhooks"),
    path("webhooks/change/", webhooks.webhook_change, name="webhook_change"),
    path("retention/", system.retention, name="retention"),
    # The second names are those by which django-allauth knows these pages.
    path("login/", sign_in.SignInView.as_view(), name="login"),
    path("login/", sign_in.SignInView.as_view(), name="account_login"),
    path("logout/", sign_in.SignOutView.as_view(), name="logout"),
    path("logout/", sign_in.SignOutView.as_view(), name="account_logout"),
    path("login/link/", sign_in.sign_in_link, name="sign_in_link"),
    path("login/provider/", sign_in.provider_sign_in, name="provider_sign_in"),
    path(
        "login/provider/callback/",
        sign_in.provider_callback,
        {"provider_id": "company"},
        name="openid_connect_callback",
    ),
    path("confirm/", reauthenticate, name="account_reauthenticate"),
    path("second-factor/webauthn/login/", sign_in.passkey_sign_in, name="mfa_login_webauthn"),
    path(
        "second-factor/webauthn/keys/<int:pk>/remove/",
        sign_in.PasskeyRemoveView.as_view(),
        name="mfa_remove_webauthn",
    ),
    path("second-factor/", include("allauth.mfa.urls")),
    path("sessions/", account.sessions, name="sessions"),
    path("sessions/end/", account.session_end, name="session_end"),
    path("tokens/", tokens.api_tokens, name="api_tokens"),
    path("tokens/revoke/", tokens.api_token_revoke, name="api_token_revoke"),
    path("sign-in/", group_roles.group_roles, name="group_roles"),
    path("sign-in/change/", group_roles.group_role_change, name="group_role_change"),
    path("permissions/", permissions.permissions, name="permissions"),
    path("read-only/", permissions.read_only_switch, name="read_only_switch"),
    path(
        "permissions/reset-second-factor/",
        permissions.second_factor_reset,
        name="second_factor_reset",
    ),
    path("preferences/", account.preferences, name="preferences"),
    path("preferences/views/", saved_views.change_saved_views, name="saved_views"),
    path("preferences/columns/<slug:name>/", account.list_columns, name="list_columns"),
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
    path("topologies/<slug:slug>/migrate/", include(_delay_migration)),
    path("publish/", publish.publish, name="publish"),
    path(
        "publish/templates/<int:pk>/delete/",
        publish.publish_template_delete,
        name="publish_template_delete",
    ),
    path("publish/jobs/<uuid:pk>/", publish.publish_job, name="publish_job"),
    path("publish/jobs/<uuid:pk>/stop/", publish.publish_job_stop, name="publish_job_stop"),
    path("publications/<uuid:pk>/", publish.publication, name="publication"),
    path("dead-letters/", overview.dead_letters, name="dead_letters"),
    path("dead-letters/<slug:broker_slug>/", include(_dead_letters)),
    path("retrying/", retrying.retrying_anywhere, name="retrying_anywhere"),
    path("retrying/<slug:broker_slug>/", retrying.retrying, name="retrying"),
    path("replays/", batches.replays, name="replays"),
    path("replays/<int:pk>/", include(_replay)),
    path("brokers/<slug:broker_slug>/start/", broker_start.broker_start, name="broker_start"),
    path("brokers/<slug:broker_slug>/firehose/", firehose.firehose, name="firehose"),
    path(
        "brokers/<slug:broker_slug>/firehose/switch/",
        firehose.firehose_switch,
        name="firehose_switch",
    ),
    path("help/api/", api_reference, name="api_reference"),
    path("help/api/openapi.json", api_document, name="api_document"),
    path("api/v1/<any:path>", api, name="api"),
    path("", include("topology.urls")),
    path("", include("analytics.urls")),
    path("admin/", admin.site.urls),
]

"""Where the pages about brokers and topologies are."""

from __future__ import annotations

from django.urls import path

from topology.views import (
    audit,
    brokers,
    discovered,
    finding,
    finding_history,
    findings,
    topologies,
    trace_route,
    transfer,
    vhost,
)

app_name = "topology"
urlpatterns = [
    path("brokers/", brokers.brokers, name="brokers"),
    path("brokers/add/", brokers.broker_add, name="broker_add"),
    path("brokers/<slug:broker_slug>/", brokers.broker, name="broker"),
    path("brokers/<slug:broker_slug>/edit/", brokers.broker_edit, name="broker_edit"),
    path("brokers/<slug:broker_slug>/test/", brokers.broker_test, name="broker_test"),
    path("brokers/<slug:broker_slug>/found/", discovered.found, name="found"),
    path("brokers/<slug:broker_slug>/found/adopt/", discovered.found_adopt, name="found_adopt"),
    path(
        "brokers/<slug:broker_slug>/found/import/",
        transfer.definitions_import,
        name="definitions_import",
    ),
    path("brokers/<slug:broker_slug>/where/", trace_route.where, name="where"),
    path("brokers/<slug:broker_slug>/picture/", vhost.vhost, name="vhost"),
    path("findings/", findings.overview, name="findings_overview"),
    path("findings/<slug:broker_slug>/", findings.findings, name="findings"),
    path(
        "findings/<slug:broker_slug>/history/",
        finding_history.finding_history,
        name="finding_history",
    ),
    path("findings/<slug:broker_slug>/<slug:key>/", finding.finding, name="finding"),
    path("findings/<slug:broker_slug>/<slug:key>/mute/", finding.finding_mute, name="finding_mute"),
    path(
        "findings/<slug:broker_slug>/<slug:key>/unmute/",
        finding.finding_unmute,
        name="finding_unmute",
    ),
    path("topologies/", topologies.topologies, name="topologies"),
    path("topologies/add/", topologies.topology_add, name="topology_add"),
    path("topologies/patterns/<slug:kind>/", topologies.explain, name="explain"),
    path("topologies/<slug:slug>/", topologies.topology, name="topology"),
    path("topologies/<slug:slug>/export/", transfer.topology_export, name="topology_export"),
    path("topologies/<slug:slug>/apply/", topologies.topology_apply, name="topology_apply"),
    path("topologies/<slug:slug>/record/", topologies.topology_record, name="topology_record"),
    path("topologies/<slug:slug>/tap/", topologies.topology_replace_tap, name="replace_tap"),
    path("topologies/<slug:slug>/verify/", topologies.topology_verify, name="topology_verify"),
    path("topologies/<slug:slug>/bodies/", topologies.topology_bodies, name="topology_bodies"),
    path("topologies/<slug:slug>/unbind/", topologies.topology_unbind, name="topology_unbind"),
    path("topologies/<slug:slug>/restore/", topologies.topology_restore, name="topology_restore"),
    path(
        "topologies/<slug:slug>/teardown/",
        topologies.topology_teardown,
        name="topology_teardown",
    ),
    path("audit/", audit.audit, name="audit"),
]

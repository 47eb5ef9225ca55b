"""Where the pages about brokers and topologies are."""

from __future__ import annotations

from django.urls import include, path

from topology.views import audit, findings, transfer
from topology.views.brokers import discovered_topologies, trace_route, vhost
from topology.views.brokers import pages as brokers
from topology.views.topologies import actions, overview, tabs

app_name = "topology"
_broker = [
    path("", brokers.broker, name="broker"),
    path("edit/", brokers.broker_edit, name="broker_edit"),
    path("test/", brokers.broker_test, name="broker_test"),
    path("discovered/", discovered_topologies.discovered, name="discovered"),
    path("discovered/adopt/", discovered_topologies.discovered_adopt, name="discovered_adopt"),
    path("discovered/import/", transfer.definitions_import, name="definitions_import"),
    path("trace-route/", trace_route.trace_route, name="trace_route"),
    path("diagram/", vhost.vhost, name="vhost"),
]
_findings = [
    path("", findings.findings, name="findings"),
    path("history/", findings.finding_history, name="finding_history"),
    path("<slug:key>/", findings.finding, name="finding"),
    path("<slug:key>/apply/", findings.finding_apply, name="finding_apply"),
    path("<slug:key>/mute/", findings.finding_mute, name="finding_mute"),
    path("<slug:key>/unmute/", findings.finding_unmute, name="finding_unmute"),
]
_topology = [
    path("", tabs.topology, name="topology"),
    path("destinations/", tabs.topology_destinations, name="topology_destinations"),
    path("definition/", tabs.topology_definition, name="topology_definition"),
    path("code/", tabs.topology_code, name="topology_code"),
    path("settings/", tabs.topology_settings, name="topology_settings"),
    path("export/", transfer.topology_export, name="topology_export"),
    path("apply/", actions.topology_apply, name="topology_apply"),
    path("edit/", actions.topology_edit, name="topology_edit"),
    path("replace/", actions.topology_replace, name="topology_replace"),
    path("record/", actions.topology_record, name="topology_record"),
    path("tap/", actions.topology_replace_tap, name="replace_tap"),
    path("verify/", actions.topology_verify, name="topology_verify"),
    path("bodies/", actions.topology_bodies, name="topology_bodies"),
    path("probes/", actions.topology_probes, name="topology_probes"),
    path("unbind/", actions.topology_unbind, name="topology_unbind"),
    path("restore/", actions.topology_restore, name="topology_restore"),
    path("teardown/", actions.topology_teardown, name="topology_teardown"),
]
urlpatterns = [
    path("brokers/", brokers.brokers, name="brokers"),
    path("brokers/add/", brokers.broker_add, name="broker_add"),
    path("brokers/<slug:broker_slug>/", include(_broker)),
    path("findings/", findings.overview, name="findings_overview"),
    path("findings/<slug:broker_slug>/", include(_findings)),
    path("topologies/", overview.topologies, name="topologies"),
    path("topologies/add/", actions.topology_add, name="topology_add"),
    path("topologies/patterns/", overview.patterns, name="patterns"),
    path("topologies/patterns/<slug:kind>/", overview.explain, name="explain"),
    path("topologies/<slug:slug>/", include(_topology)),
    path("audit/", audit.audit, name="audit"),
]

from __future__ import annotations

from django.urls import path

from analytics.views import annotate, imports, reports, runs, scheduled, topology_tabs

app_name = "analytics"
urlpatterns = [
    path("scheduled/", scheduled.scheduled, name="scheduled"),
    path("scheduled/<int:pk>/", scheduled.scheduled_message, name="scheduled_message"),
    path(
        "topologies/<slug:slug>/messages/",
        topology_tabs.topology_messages,
        name="topology_messages",
    ),
    path(
        "topologies/<slug:slug>/history/", topology_tabs.topology_history, name="topology_history"
    ),
    path("reports/", reports.reports, name="reports"),
    path("reports/messages/", reports.report_messages, name="report_messages"),
    path("reports/run/", reports.run, name="run"),
    path("reports/runs/", runs.runs, name="runs"),
    path("reports/runs/<slug:day>/", runs.nightly_run, name="nightly_run"),
    path("reports/imports/", imports.imports, name="imports"),
    path("reports/imports/upload/", imports.upload, name="import_upload"),
    path("reports/imports/<int:pk>/", imports.import_page, name="import"),
    path("reports/imports/<int:pk>/change/", imports.change, name="import_change"),
    path("reports/annotations/add/", annotate.add, name="annotation_add"),
    path("reports/annotations/delete/", annotate.delete, name="annotation_delete"),
    path("reports/slo/", reports.slo, name="slo"),
    path("reports/nightly/<slug:day>.<slug:suffix>", reports.stored_report, name="stored_report"),
    path("reports/<slug:key>.csv", reports.table, name="report_table"),
]

from __future__ import annotations

from django.urls import path

from analytics.views import reports, scheduled

app_name = "analytics"
urlpatterns = [
    path("scheduled/", scheduled.scheduled, name="scheduled"),
    path("scheduled/<int:pk>/", scheduled.scheduled_message, name="scheduled_message"),
    path("reports/", reports.reports, name="reports"),
    path("reports/run/", reports.run, name="run"),
    path("reports/slo/", reports.slo, name="slo"),
    path("reports/<slug:key>.csv", reports.table, name="report_table"),
]

"""The progress of a publish job, and its stop."""

from __future__ import annotations

import uuid

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from delayboard.models import PublishJob
from delayboard.models.background_task import PUBLISH_JOBS, is_missing
from delayboard.publishing.publish_job import make_job_version, read_id_base, stop_job
from topology import access
from topology.models import Role


@require_safe
def publish_job(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    job = _job(request, pk, Role.VIEWER)
    context = {
        "job": job,
        "broker": job.broker,
        "id_base": read_id_base(job),
        "live_version": make_job_version(job),
        "may_operate": access.may(request.user, job.broker, Role.OPERATOR),
        "worker_is_missing": is_missing(PUBLISH_JOBS),
    }
    return render(request, "delayboard/publish_job.html", context)


@require_POST
def publish_job_stop(request: HttpRequest, pk: uuid.UUID) -> HttpResponse:
    if not stop_job(request.user, _job(request, pk, Role.OPERATOR)):
        messages.error(request, "The job is not stopped, because it has ended.")
    return redirect("publish_job", pk=pk)


def _job(request: HttpRequest, pk: uuid.UUID, role: Role) -> PublishJob:
    rows = PublishJob.objects.select_related("broker", "topology", "work", "created_by")
    job = get_object_or_404(rows, pk=pk)
    access.require(request.user, job.broker, role)
    return job

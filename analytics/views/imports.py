"""Imports of files: upload, mapping, dry run, import. They add events of any broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_POST, require_safe

from analytics.importing import requested
from analytics.importing.sources import Refused
from analytics.log import LogError
from analytics.mappings.mapping import (
    KINDS,
    Format,
    LogMapping,
    MappingError,
    load_shipped,
    parse,
    shipped_names,
)
from analytics.mappings.propose import DELAY_UNITS, TIME_FORMS, Choices, list_paths
from analytics.models import LogImport, SavedMapping
from analytics.models.imports import find_mapping
from topology import access, audit, work
from topology.database.paging import read_slice
from topology.models import Broker, Role

PAGE = 30
admin = access.everywhere(Role.ADMIN)


@require_safe
@admin
def imports(request: HttpRequest) -> HttpResponse:
    rows = LogImport.objects.select_related("broker", "work", "created_by")
    context = {
        "page": read_slice(rows.defer("mapping_text"), request.GET.get("after", ""), PAGE),
        "limit_mb": settings.IMPORT_MB,
        "shipped": [load_shipped(name) for name in shipped_names()],
        "saved": SavedMapping.objects.select_related("updated_by"),
    }
    return render(request, "analytics/imports.html", context)


@csrf_exempt
@require_POST
def upload(request: HttpRequest) -> HttpResponse:
    """A file that is too large is refused before it is read, which the check for CSRF would do."""
    if int(request.META.get("CONTENT_LENGTH") or 0) > settings.IMPORT_MB * 1024 * 1024:
        messages.error(
            request,
            f"The file is larger than {settings.IMPORT_MB} MB. Use manage.py import_log for it.",
        )
        return redirect("analytics:imports")
    return _upload(request)


@csrf_protect
@admin
def _upload(request: HttpRequest) -> HttpResponse:
    file = request.FILES.get("file")
    if not isinstance(file, UploadedFile) or not file.size:
        messages.error(request, "Choose a file that is not empty.")
        return redirect("analytics:imports")
    name = file.name or "upload"
    try:
        with audit.recorded(request.user, "import file uploaded", what=name):
            row = requested.store_upload(request.user, name, file.chunks())
    except LogError as error:
        messages.error(request, str(error))
        return redirect("analytics:imports")
    return redirect("analytics:import", pk=row.pk)


@require_safe
@admin
def import_page(request: HttpRequest, pk: int) -> HttpResponse:
    return _page(request, _find(pk))


@require_POST
@admin
def change(request: HttpRequest, pk: int) -> HttpResponse:
    """What a button of the page does with the mapping or the file."""
    row = _find(pk)
    action = request.POST.get("action", "")
    if action == "stop" and row.work:
        work.cancel(row.work)
        audit.record(request.user, "import stop requested", what=row.file_name)
        return redirect("analytics:import", pk=pk)
    if action == "delete":
        if row.is_at_work:
            messages.error(request, "The file is being read. Stop the import first.")
            return redirect("analytics:import", pk=pk)
        with audit.recorded(request.user, "import file deleted", what=row.file_name):
            requested.delete_upload(row)
        return redirect("analytics:import", pk=pk)
    text = _read_text(request, row, action)
    try:
        mapping = parse(text, row.mapping_name or "mapping") if text else None
        _take(request, row, text)
        if action == "save" and mapping:
            _save(request, row, text)
        elif action in ("dry-run", "import"):
            requested.request_import(request.user, row, is_dry=action == "dry-run")
    except (MappingError, Refused) as error:
        return _page(request, row, text=text, problem=str(error))
    return redirect("analytics:import", pk=pk)


def _find(pk: int) -> LogImport:
    rows = LogImport.objects.select_related("broker", "work", "created_by")
    return get_object_or_404(rows, pk=pk)


def _read_text(request: HttpRequest, row: LogImport, action: str) -> str:
    """The mapping that the form means: by name, by its choices, or its text."""
    if action == "choose":
        name = request.POST.get("name", "")
        try:
            text = "" if name == "none" else find_mapping(name).text
        except MappingError:
            return row.mapping_text
        row.mapping_name = "" if name == "none" else name
        return text
    if action == "fields":
        values = request.POST.getlist("value")
        kinds = dict(zip(values, request.POST.getlist("kind"), strict=False))
        names = ("time", "time_form", "zone", "message_id", "queue", "delay", "delay_unit", "event")
        stated = {name: request.POST.get(name, "") for name in names}
        form: Format = "csv" if request.POST.get("format") == "csv" else "json"
        row.mapping_name = ""
        kinds = {value: kind for value, kind in kinds.items() if kind in KINDS}
        return Choices(format=form, kinds=kinds, **stated).to_toml(row.file_name)
    return request.POST.get("text", row.mapping_text).replace("\r\n", "\n")


def _take(request: HttpRequest, row: LogImport, text: str) -> None:
    slug = request.POST.get("broker")
    if slug is not None:
        row.broker = Broker.objects.filter(slug=slug).first()
    row.topology = request.POST.get("topology", row.topology).strip()[:255]
    row.mapping_text = text
    # The worker may store a result meanwhile.
    row.save(update_fields=["broker", "topology", "mapping_name", "mapping_text"])


def _save(request: HttpRequest, row: LogImport, text: str) -> None:
    name = slugify(request.POST.get("save_as", ""))[:60]
    if not name or name in shipped_names():
        raise Refused("Enter a name of a-z, digits and hyphens that no shipped mapping has.")
    with audit.recorded(request.user, "mapping saved", what=name):
        SavedMapping.objects.update_or_create(
            name=name, defaults={"text": text, "updated_by_id": request.user.pk}
        )
    row.mapping_name = name
    row.save(update_fields=["mapping_name"])
    messages.success(request, f"The mapping {name} was saved.")


def _page(
    request: HttpRequest, row: LogImport, *, text: str | None = None, problem: str = ""
) -> HttpResponse:
    shown = row.mapping_text if text is None else text
    context: dict[str, Any] = {
        "row": row,
        "text": shown,
        "problem": problem,
        "shipped": [load_shipped(name) for name in shipped_names()],
        "saved": SavedMapping.objects.all(),
        "brokers": Broker.objects.order_by("name"),
        "kinds": KINDS,
        "time_forms": TIME_FORMS,
        "delay_units": DELAY_UNITS,
    }
    mapping: LogMapping | None = None
    if shown:
        try:
            mapping = parse(shown, row.mapping_name or "mapping")
        except MappingError as error:
            context["problem"] = problem or str(error)
    context["mapping"] = mapping
    if row.path:
        context |= _read_begin(row, mapping)
    return render(
        request, "analytics/import.html", context, status=400 if context["problem"] else 200
    )


def _read_begin(row: LogImport, mapping: LogMapping | None) -> dict[str, Any]:
    """The first records with their events, and the choices of the form."""
    found: dict[str, Any] = {}
    choices = requested.propose_choices(Path(row.path))
    if choices:
        found["choices"] = choices
        plain = load_shipped("delay-csv" if choices.format == "csv" else "spring-ecs")
        try:
            records = requested.first_records(Path(row.path), plain)
            found["paths"] = list_paths([one for one in records if isinstance(one, dict)])
        except Refused:
            found["paths"] = []
    if mapping:
        try:
            found["preview"] = requested.preview(row, mapping)
        except Refused as error:
            found["refusal"] = str(error).replace(row.path, row.file_name)
    return found

"""A topology for other tools, and topologies from exported definitions."""

from __future__ import annotations

import json
from urllib.parse import quote

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from topology import access, snapshots
from topology.broker.management.definitions_file import NotDefinitions
from topology.definitions import Definitions
from topology.exports.resources import NotExportable
from topology.models import Broker, Role, Topology
from topology.operations.definitions_files import FORMATS, export_topology, import_definitions
from topology.operations.ownership import Refusal
from topology.views.topologies.tabs import with_topology
from topology.views.uploads import read_upload

MOST_SENTENCES = 5


@require_safe
@with_topology(Role.VIEWER)
def topology_export(request: HttpRequest, topology: Topology) -> HttpResponse:
    form = request.GET.get("format", "")
    if form not in FORMATS:
        raise Http404("This format does not exist. Go back to the topology page.")
    known = snapshots.fresh(topology.broker)
    found = known.snapshot.definitions if known.snapshot else Definitions()
    try:
        text = export_topology(topology, form, found)
    except NotExportable as error:
        messages.error(request, f"Topology not exported. {error}")
        return redirect("topology:topology", slug=topology.slug)
    answer = HttpResponse(text, content_type="text/plain; charset=utf-8")
    name = quote(f"{topology.slug}.{FORMATS[form][1]}")
    answer["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
    return answer


@require_POST
@access.with_broker(Role.OPERATOR)
def definitions_import(request: HttpRequest, broker: Broker) -> HttpResponse:
    back = redirect("topology:discovered", broker_slug=broker.slug)
    file = read_upload(request, f"import_topologies {broker.slug}")
    if file is None:
        return back
    vhost = request.POST.get("vhost", "") or None
    try:
        imported = import_definitions(request.user, broker, json.loads(file.read()), vhost)
    except (NotDefinitions, Refusal) as error:
        messages.error(request, f"Nothing was imported. {error}")
        return back
    except (ValueError, RecursionError):
        messages.error(request, "Nothing was imported. The file is not JSON.")
        return back
    add_message = messages.success if imported.planned else messages.warning
    add_message(request, imported.sentence)
    for sentence in imported.skipped[:MOST_SENTENCES]:
        messages.warning(request, sentence)
    if len(imported.planned) == 1:
        return redirect("topology:topology", slug=imported.planned[0].slug)
    return redirect("topology:topologies")

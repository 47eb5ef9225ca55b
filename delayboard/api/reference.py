"""The reference of the API for people, and its OpenAPI document, for who is signed in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe


@require_safe
def api_reference(request: HttpRequest) -> HttpResponse:
    """Each operation with its role, parameters, body and answers."""
    from delayboard.api.site import make_document

    document = make_document()
    schemas = document["components"]["schemas"]
    sections: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _show(path, method, operation, schemas)
            sections[operation["tags"][0]].append(shown)
    context = {"sections": dict(sections), "info": document["info"]}
    return render(request, "delayboard/api_reference.html", context)


@require_safe
def api_document(request: HttpRequest) -> HttpResponse:
    """The OpenAPI 3.1 document as a file."""
    from delayboard.api.site import make_document

    name = {"Content-Disposition": 'attachment; filename="delayboard-openapi.json"'}
    return JsonResponse(make_document(), headers=name, json_dumps_params={"indent": 1})


def _show(
    path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    answers = {
        status: answer["content"]["application/json"]["schema"]
        for status, answer in operation["responses"].items()
        if "application/json" in answer.get("content", {})
    }
    return {
        "name": operation["operationId"],
        "path": path,
        "method": method.upper(),
        "description": operation.get("description", "").replace("`", ""),
        "role": operation["x-role"],
        "where": operation["x-role-on"],
        "parameters": [
            (one["name"], one["in"], _type_of(one["schema"]), one.get("description", ""))
            for one in operation.get("parameters", ())
            if one["in"] != "header"
        ],
        "body": _fields(body["schema"], schemas) if body else None,
        "answers": [(status, *_describe(schema, schemas)) for status, schema in answers.items()],
    }


def _resolve(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema itself, that of a reference, or that of a list's items."""
    while True:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rpartition("/")[2]]
        elif schema.get("type") == "array" and "items" in schema:
            schema = schema["items"]
        else:
            return schema


def _describe(
    schema: Mapping[str, Any], schemas: Mapping[str, Any]
) -> tuple[str, list[tuple[str, str]]]:
    """Words about an answer, and its fields; of a page those of an item."""
    found = _resolve(schema, schemas)
    words = found.get("description", "").replace("`", "")
    items = found.get("properties", {}).get("items")
    if items is None:
        return words, _fields(schema, schemas)
    item = _resolve(items, schemas)
    words = item.get("description", "").replace("`", "")
    return f"A page of items. {words}", _fields(items, schemas)


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and type of each field."""
    found = _resolve(schema, schemas)
    return [(name, _type_of(one)) for name, one in found.get("properties", {}).items()]


def _type_of(schema: Mapping[str, Any]) -> str:
    """A type in words: "integer or null", "list of string"."""
    if "anyOf" in schema:
        return " or ".join(map(_type_of, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("type") == "array":
        return f"list of {_type_of(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any"))

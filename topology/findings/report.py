"""Findings as text, as JSON, as SARIF and as annotations of GitHub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from topology.content.text import count_of
from topology.definitions import Identity
from topology.findings.find import RULES
from topology.findings.finding import Finding
from topology.findings.hit import Admin, Evidence, describe_blanks, name_tool, set_vhost, warn_about

# Most objects of a finding that text and annotations name.
MOST_NAMED = 5
MOST_LOCATIONS = 100
_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = {**_DATA, ":": "%3A", ",": "%2C"}

Known: TypeAlias = frozenset[tuple[str, str, Identity]]


def name_of(obj: Identity) -> str:
    """An object in words: "queue orders"."""
    if obj[0] == "binding":
        _, source, kind, target, key, *_ = obj
        with_key = f" with key {key}" if key else ""
        return f"binding from {source} to {kind} {target}{with_key}"
    return f"{obj[0]} {obj[1]}"


def as_lines(found: Mapping[str, Sequence[Finding]], admins: Mapping[str, Admin]) -> Iterator[str]:
    """Text for a person; a vhost is named where there are several. `admins` are by vhost."""
    for vhost, findings in found.items():
        if len(found) > 1 and findings:
            yield from (f"Virtual host {vhost}", "")
        for one in findings:
            yield from _finding_lines(one, vhost, admins[vhost])
            yield ""
    everything = [one for findings in found.values() for one in findings]
    total = count_of(len(everything), "finding")
    counts = Counter(one.severity for one in everything)
    # “2 loss, 1 cost”: so many of each severity, the worst first.
    words = ", ".join(f"{counts[severity]} {severity.key}" for severity in sorted(counts)[::-1])
    yield f"{total}: {words}." if everything else "No findings."


def _finding_lines(one: Finding, vhost: str, admin: Admin) -> Iterator[str]:
    yield f"{one.rule.id} {one.severity.label}: {one.title}"
    for evidence in one.evidence[:MOST_NAMED]:
        yield f"  {setting_of(evidence)}"
        yield f"    {evidence.sentence}"
    if (more := len(one.evidence) - MOST_NAMED) > 0:
        yield f"  and {more} more"
    yield f"  Why: {one.rule.explanation}"
    yield f"  Remedy: {one.remedy}"
    if one.commands:
        commands = (set_vhost(vhost), *one.commands[:MOST_NAMED])
        yield from (f"    {command}" for command in commands)
        if (more := len(one.commands) - MOST_NAMED) > 0:
            yield f"    and {more} more commands, all in --format json"
        notes = (warn_about(commands), name_tool(commands, admin), describe_blanks(commands))
        yield from (f"  {note}" for note in notes if note)
    yield f"  Source: {one.rule.source}"


def setting_of(evidence: Evidence) -> str:
    by = f", set by {evidence.set_by}" if evidence.set_by not in ("", "argument") else ""
    return f"{name_of(evidence.object)}: {evidence.argument} = {evidence.value}{by}"


def as_json(found: Mapping[str, Sequence[Finding]]) -> dict[str, Any]:
    return {
        "findings": [
            {
                "key": one.key,
                "rule": one.rule.id,
                "severity": one.severity.key,
                "title": one.title,
                "vhost": vhost,
                "evidence": list(map(asdict, one.evidence)),
                "explanation": one.rule.explanation,
                "remedy": one.remedy,
                "commands": [set_vhost(vhost), *one.commands] if one.commands else [],
                "source": one.rule.source,
            }
            for vhost, findings in found.items()
            for one in findings
        ]
    }


def as_sarif(found: Mapping[str, Sequence[Finding]], file: str) -> dict[str, Any]:
    """A SARIF 2.1.0 log with one result for each finding, in `file`."""
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.explanation},
            "help": {"text": rule.remedy},
            "helpUri": rule.source,
            "defaultConfiguration": {"level": rule.severity.level},
        }
        for rule in RULES
    ]
    results = [_sarif_result(one, vhost, file) for vhost, some in found.items() for one in some]
    run = {"tool": {"driver": {"name": "Delayboard", "rules": rules}}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": [run]}


def _sarif_result(one: Finding, vhost: str, file: str) -> dict[str, Any]:
    objects = one.objects[:MOST_LOCATIONS]
    names = [{"fullyQualifiedName": f"{vhost}/{name_of(obj)}"} for obj in objects]
    place = {"artifactLocation": {"uri": file}, "region": {"startLine": 1}}
    return {
        "ruleId": one.rule.id,
        "level": one.severity.level,
        "message": {"text": f"{_summary(one, vhost)} {one.remedy}"},
        "locations": [{"physicalLocation": place, "logicalLocations": names}],
        "partialFingerprints": {"delayboard/v1": f"{vhost}/{one.key}"},
    }


def _summary(one: Finding, vhost: str) -> str:
    """One line: the first object's sentence, and how many more there are."""
    more = len(one.objects) - 1
    others = f" The same holds for {count_of(more, 'more object')}." if more else ""
    where = f" (virtual host {vhost})" if vhost else ""
    return f"{one.title}{where}. {one.evidence[0].sentence}{others}"


def as_annotations(found: Mapping[str, Sequence[Finding]], file: str) -> Iterator[str]:
    """Workflow commands of GitHub Actions, one for each finding."""
    for vhost, findings in found.items():
        for one in findings:
            level = one.severity.level.replace("note", "notice")
            title = _escape(f"{one.rule.id} {one.title}", _PROPERTY)
            text = _escape(f"{_summary(one, vhost)} {one.remedy}", _DATA)
            yield f"::{level} file={_escape(file, _PROPERTY)},title={title}::{text}"


def _escape(text: str, signs: Mapping[str, str]) -> str:
    """Source: GitHub's toolkit, packages/core/src/command.ts."""
    return "".join(signs.get(sign, sign) for sign in text)


class NotABaseline(ValueError):
    """The document is none; the message is a sentence."""


def read_baseline(document: Any) -> Known:
    """Raises NotABaseline."""
    rows = document.get("known") if isinstance(document, Mapping) else None
    if not isinstance(rows, list) or not all(_is_known(row) for row in rows):
        raise NotABaseline(
            "The baseline file has an unexpected form. Write it again with --write-baseline."
        )
    return frozenset((row["rule"], row["vhost"], tuple(row["object"])) for row in rows)


def _is_known(row: Any) -> bool:
    if not isinstance(row, Mapping) or not isinstance(obj := row.get("object"), list):
        return False
    texts = (row.get("rule"), row.get("vhost"), *obj)
    return all(isinstance(text, str) for text in texts)


def make_baseline(found: Mapping[str, Iterable[Finding]]) -> dict[str, Any]:
    """All of these findings, by vhost."""
    everything = [(vhost, one) for vhost, findings in found.items() for one in findings]
    rows = {(one.rule.id, vhost, obj) for vhost, one in everything for obj in one.objects}
    return {"known": [{"rule": r, "vhost": v, "object": list(obj)} for r, v, obj in sorted(rows)]}


def without_known(
    found: Iterable[Finding], vhost: str, known: Collection[Any]
) -> tuple[Finding, ...]:
    """The findings with the objects that are not known, without those of which all are."""
    left = []
    for one in found:
        hits = tuple(h for h in one.hits if (one.rule.id, vhost, h.evidence.object) not in known)
        left += [replace(one, hits=hits)] if hits else []
    return tuple(left)

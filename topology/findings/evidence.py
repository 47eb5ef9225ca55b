"""What a rule reports of one object."""

from __future__ import annotations

from dataclasses import dataclass

from topology.definitions import Identity
from topology.findings.severity import Severity


@dataclass(frozen=True)
class Evidence:
    """One object with the setting that is wrong; `set_by` says who sets it, "" for nobody.

    `sentence` says what happens at this object.
    """

    object: Identity
    argument: str
    value: str
    set_by: str
    sentence: str


@dataclass(frozen=True)
class Hit:
    """What one rule finds at one object. Hits with one `cause` are one finding.

    `commands` are what to run, with words in capitals for what a person has to choose. `unless`
    completes the sentence where it depends on what the definitions do not show: then the hit is a
    note, without commands. `severity` and `remedy` are the rule's where they are not stated.
    """

    cause: str
    evidence: Evidence
    commands: tuple[str, ...] = ()
    unless: str = ""
    severity: Severity | None = None
    remedy: str = ""

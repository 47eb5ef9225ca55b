"""What a rule reports of one object."""

from __future__ import annotations

from dataclasses import dataclass

from topology.definitions import Identity


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

    `commands` are what to run, with words in capitals for what a person has to choose.
    """

    cause: str
    evidence: Evidence
    commands: tuple[str, ...] = ()

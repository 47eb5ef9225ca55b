"""Rows about brokers: where they are, who may touch them and see what, what was built there."""

from __future__ import annotations

from topology.models.audit_entry import AuditEntry
from topology.models.broker import Broker, Palette
from topology.models.client_convention import ClientConvention
from topology.models.finding import Drift, FindingMute, FindingPeriod, QueueReport
from topology.models.grant import Grant, RedactionKind, RedactionRule, Role
from topology.models.missing_binding import MissingBinding
from topology.models.queue_replacement import QueueReplacement, ReplacementStep
from topology.models.read_only import ReadOnly, SiteSwitch
from topology.models.topology import DEFAULT_PROBE_MINUTES, Probing, State, Topology
from topology.models.work import Work, WorkState

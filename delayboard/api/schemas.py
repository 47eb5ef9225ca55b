"""What requests and answers have; the documents of commands are described, and made elsewhere."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar
from uuid import UUID

from pydantic import BaseModel as Schema
from pydantic import ConfigDict, Field

Item = TypeVar("Item")
# Most ids in a request; one of changes is one transaction.
MOST_IDS = 1000
# Id of a row; a larger number does not fit into the database.
RowId: TypeAlias = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Body(Schema):
    """Unknown fields are refused, and no text is taken for a number."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ProblemDetails(Schema):
    """RFC 9457. `detail` is the sentence that the page shows, `errors` one for each wrong field.

    `is_unknown`: something may have been changed.
    """

    type: str
    title: str
    status: int
    detail: str
    errors: dict[str, str] = Field(default_factory=dict)
    is_unknown: bool = False


class Page(Schema, Generic[Item]):
    """`next` is the parameter `after` of the next page, null on the last."""

    items: list[Item]
    next: str | None


class NameConfirmation(Body):
    """`confirm` is the topology's name where the page asks for it."""

    confirm: str = ""


class Broker(Schema):
    """`error` says why the snapshot is not newer; numbers are null while they are unknown."""

    slug: str
    name: str
    environment: str
    is_production: bool
    is_read_only: bool
    vhost: str
    version: str | None
    taken_at: datetime | None
    error: str
    queues: int | None
    messages: int | None
    alarms: list[str]


class Route(Schema):
    """As `walk --json` prints it."""

    routed: bool
    outcomes: list[dict[str, Any]]
    sentences: list[str]


class Discovered(Schema):
    """`topology` is the slug of the one that manages it, null where nobody does."""

    kind: str
    name: str
    queues: list[str]
    waiting: int | None
    topology: str | None


class Adoption(Body):
    kind: str
    name: str


class Adopted(Schema):
    """`topology` is its slug, null after a dry run."""

    topology: str | None
    changes: list[Change]


class Topology(Schema):
    """`drift` is null while the topology is in sync, as the worker last saw it."""

    slug: str
    name: str
    kind: str
    broker: str
    state: str
    params: dict[str, Any]
    delays: str
    is_adopted: bool
    applied_at: datetime | None
    drift: Drift | None


class Drift(Schema):
    since_at: datetime
    objects: int
    missing: int
    changed: int
    sentence: str


class Change(Schema):
    """`sign` is create, present or conflict."""

    sign: str
    object: list[Any]
    title: str
    differences: list[dict[str, Any]]


class TopologyDocument(Schema):
    """As the command prints it with `--json`; `sentences` are what it prints without.

    More fields: `changes` and `created` of apply, `deletes` and `keeps` of teardown, `reroutes`,
    `kept` and `replacements` of edit; with `dry_run` also why it would be refused.
    """

    model_config = ConfigDict(extra="allow")
    topology: str
    broker: str
    state: str
    is_good: bool
    sentences: list[str]


class Parameters(NameConfirmation):
    """`values` by the names of parameters, as texts."""

    values: dict[str, str]


class DefinitionsFile(Body):
    """`definitions` as RabbitMQ exports them; `vhost` names one of several."""

    definitions: Any
    vhost: str | None = None


class ImportedTopologies(Schema):
    """`skipped` has a sentence for each topology that was not planned."""

    planned: list[dict[str, str]]
    skipped: list[str]
    sentence: str


class Plan(TopologyDocument):
    """As `plan --json` prints it."""

    in_sync: bool
    refusal: str
    changes: list[Change]
    replacing: list[str]
    replacements: list[dict[str, Any]]


class Verification(TopologyDocument):
    """As `verify --json` prints it."""

    holds: bool
    checks: list[dict[str, Any]]
    not_tried: list[str]
    changes: list[Change]


class WaitingMessage(Schema):
    """As `scheduled --json` prints it."""

    kind: str
    id: int
    broker: str
    topology: str
    destination: str
    due_at: str | None
    state: str
    overdue_ms: int | None
    requested_delay_ms: int
    published_at: str | None
    published_at_source: str
    published_by: str
    exchange: str
    routing_key: str
    entered_at: str | None
    queue: str
    hops: int | None
    remaining_hops: int | None
    attempt: int
    message_id: str
    correlation_id: str
    content_id: str
    content_type: str
    size_bytes: int
    source: str
    headers: dict[str, Any]
    masked: bool


class WaitingPage(Page[WaitingMessage]):
    """`doubts` say why the list may be incomplete; `matching` is null where nobody counted."""

    matching: int | None
    doubts: list[str]


class WaitingSummary(Schema):
    """The last line of `scheduled --json`. `counted_to` and more are that many, or more."""

    kind: str
    waiting: int
    overdue: int
    stuck: int
    matching: int | None
    counted_to: int
    incomplete: list[dict[str, Any]]


class Retry(WaitingMessage):
    """`round` numbers its trips through the delay; `of` is null where only its consumer knows."""

    round: int
    of: int | None
    failed: str


class ChangeRequest(Body):
    """`messages` are ids of the list; `to` is the new due time of a reschedule.

    `kind` is cancel, reschedule or deliver_now.
    """

    kind: str
    messages: list[RowId] = Field(min_length=1, max_length=MOST_IDS)
    to: str = ""
    confirm: str = ""


class ChangeVerdict(Schema):
    """`problem` says why the message cannot be changed, "" where it can."""

    message: int
    problem: str
    takes_effect_at: datetime | None
    publishes_copy: bool
    other_messages: int


class ChangeVerdicts(Schema):
    """`sentences` are what the command prints. One that `is_risky` needs the name everywhere."""

    verdicts: list[ChangeVerdict]
    sentences: list[str]
    is_risky: bool


class ScheduledChange(Schema):
    """As `scheduled changes --json` prints it."""

    kind: str
    id: int
    change: str
    state: str
    broker: str
    topology: str
    destination: str
    message: str
    due_at: str | None
    new_due_at: str | None
    requested_at: str | None
    ended_at: str | None
    may_be_duplicated: bool
    error: str
    can_be_undone: bool


class Publishing(Body):
    """Through a topology, with a delay or a due time; or to an exchange of a broker.

    `headers` is a JSON object, `body_format` text, json or base64, `count` many messages at `rate`.
    """

    topology: str = ""
    delay: str = ""
    due_at: str = ""
    target: str = ""
    broker: str = ""
    exchange: str = ""
    routing_key: str = ""
    body: str = ""
    body_format: str = "text"
    content_type: str = ""
    headers: dict[str, Any] = Field(default_factory=dict)
    persistent: bool = True
    priority: int | None = None
    expiration: str = ""
    correlation_id: str = ""
    message_id: str = ""
    type: str = ""
    count: int | None = None
    rate: float | None = None
    confirm: str = ""


class Prediction(Schema):
    """The line `predicted` of `publish --json`, and the broker that it is for."""

    broker: str
    state: str
    sentence: str


class Publication(Schema):
    """`state` is sending, confirmed, refused or unknown; `sentence` says what was observed.

    `mark` is sending, waiting, arrived, late, lost or not_observed; `is_settled` ends it.
    """

    id: UUID
    broker: str
    topology: str | None
    state: str
    sentence: str
    mark: str
    is_settled: bool
    error: str
    message_id: str
    created_at: datetime
    due_at: datetime | None


class PublishJob(Schema):
    """`returned` were not published, `unknown` possibly, for the reason `returned_why`."""

    id: UUID
    broker: str
    state: str
    number: int
    published: int
    returned: int
    returned_why: str
    unknown: int
    repeated: int
    error: str


class DeadLetterQueue(Schema):
    """`status` is confirmed, proposed or other; numbers are null while they are unknown."""

    name: str
    status: str
    messages: int | None
    parked: int
    parks_automatically: bool


class Group(Schema):
    """What a redaction rule hides is `redacted`."""

    id: int
    broker: str
    title: str
    died_in: str
    reason: str
    exchange: str
    routing_key: str
    exception: str
    exception_message: str
    message_type: str
    parked: int
    discarded: int
    replaying: int
    delayed: int
    replayed: int
    total: int
    first_at: datetime
    last_at: datetime
    note: str
    link: str


class ParkedLine(Schema):
    """`beginning` of the body is null for the role viewer."""

    id: int
    queue: str
    group: int
    state: str
    message_id: str
    deaths: int | str
    died_at: datetime | str | None
    parked_at: datetime
    size: int
    repeat_of: int | None
    beginning: str | None


class ParkedMessage(Schema):
    """As `export_dead_letters` writes it."""

    model_config = ConfigDict(extra="allow")
    uid: str
    broker: str
    queue: str
    state: str
    masked: bool


class ImportedMessages(Schema):
    """`wrong` are the first lines that were skipped."""

    lines: int
    added: int
    known: int
    malformed: int
    summary: str
    wrong: list[dict[str, Any]]


class ParkingRequest(Body):
    queue: str


class Parking(Schema):
    """`state` is that of its task; `requested` is null while nobody counted."""

    id: int
    broker: str
    queue: str
    state: str
    requested: int | None
    parked: int
    repeats: int


class Selection(Body):
    """One of the three: ids of parked messages, the id of a group, or a search."""

    parked_messages: list[RowId] | None = Field(default=None, min_length=1, max_length=1000)
    group: RowId | None = None
    query: str | None = Field(default=None, max_length=500)
    confirm: str = ""


class ParkedChange(Schema):
    """`id` is null where few messages were changed at once, and of a dry run.

    `requested` is null where nobody counted.
    """

    id: int | None
    state: str
    requested: int | None
    changed: int


class ReplayOptions(Body):
    """As the page has them; what is not sent keeps its value.

    `mode` is default, first_queue, typed (with `exchange` and `key`) or delay (with `topology`).
    """

    mode: str | None = None
    exchange: str | None = None
    key: str | None = None
    topology: str | None = None
    delay: str | None = None
    order: str | None = None
    rate: float | None = None
    canary: int | None = None
    canary_seconds: int | None = None
    canary_goes_on: bool | None = None
    stages: str | None = None
    undo_seconds: int | None = None
    most_replays: int | None = None
    stop_after: int | None = None
    limit: int | None = None
    include_repeats: bool | None = None
    keep_counters: bool | None = None
    unwraps: bool | None = None


class ReplayRequest(ReplayOptions):
    """What is replayed: one of the three; and how."""

    parked_messages: list[RowId] | None = Field(default=None, min_length=1, max_length=1000)
    group: RowId | None = None
    query: str | None = Field(default=None, max_length=500)


class ReplayStart(Body):
    """`despite_verdict` starts although messages have a bad verdict.

    `name`, `reason` and `link` (of a ticket) are shown. The other fields change these options of
    the draft. `stages` are such as “1% 5m, 10% 10m 2”, in place of a canary. A second person who
    approves gives `approval_request` of the draft as `approves`.
    """

    name: str | None = Field(default=None, max_length=100)
    reason: str | None = Field(default=None, max_length=500)
    link: str | None = Field(default=None, max_length=500)
    stages: str | None = None
    canary: int | None = None
    canary_seconds: int | None = None
    canary_goes_on: bool | None = None
    rate: float | None = None
    undo_seconds: int | None = None
    despite_verdict: bool = False
    approves: str = ""
    confirm: str = ""


class Replay(Schema):
    """As `replay_dead_letters --json` prints it; read it until it `is_resting`.

    `until_at` ends the undo period, or the time in which a canary is observed. `errors` have the
    most frequent reasons, null in a list and before it rests. `worker_is_missing` is null in a
    list. A draft with `approval_requested_by` is started by another person.
    """

    kind: str
    replay: int
    broker: str
    state: str
    why: str
    until_at: str | None
    is_resting: bool
    hindered_by: str
    selected: int
    done: int
    returned: int
    failed: int
    unknown: int
    cancelled: int
    excluded: int
    pending: int
    may_be_duplicated: int
    delivered: int
    died_again: int
    errors: list[dict[str, Any]] | None
    worker_is_missing: bool | None
    name: str
    approval_requested_by: str | None
    approval_request: str


class DryRun(Schema):
    """As `replay_dead_letters --dry-run --json` prints it: `routes` are the lines of that kind."""

    kind: str
    replay: int
    description: str
    state: str
    selected: int
    repeats: int
    excluded: int
    good: int
    endings: list[dict[str, Any]]
    routes: list[dict[str, Any]]
    warnings: list[str]


class ReplayItem(Schema):
    """`outcome` is delivered, died, delayed, unobserved, or "" while nothing was observed."""

    position: int
    parked_message: int | None
    message_id: str
    state: str
    verdict: str
    is_good: bool | None
    may_be_duplicated: bool
    outcome: str
    error: str


class Findings(Schema):
    """As `lint --format json` prints them, with the key of each."""

    findings: list[dict[str, Any]]


class LintRequest(Body):
    """`baseline` is a document that the command lint wrote."""

    format: Literal["text", "json", "sarif", "github"] = "text"
    fail_on: Literal["refused", "loss", "stuck", "timing", "cost", "style"] = "cost"
    vhost: str | None = None
    baseline: Any = None


class LintReport(Schema):
    """`output` are the lines of the command; `baseline` accepts all that was found."""

    output: list[str]
    notes: list[str]
    is_good: bool
    baseline: dict[str, Any]


class Mute(Body):
    """`until` is the last day, such as 2026-12-31."""

    reason: str
    until: str


class Figures(Schema):
    """As `report --json` prints it."""

    model_config = ConfigDict(extra="allow")
    day: str
    generated: bool
    run: dict[str, Any] | None
    is_empty: bool


class Run(Schema):
    day: date
    state: str
    started_at: datetime | None
    finished_at: datetime | None
    lines: int
    malformed: int
    excluded: dict[str, int]
    error: str


class RunRequest(Body):
    day: str


class LogImport(Schema):
    """`counts` are of its last end, and `unknown` what this log cannot know, as sentences;
    `problems` are the first malformed lines.
    """

    id: int
    file: str
    mapping: str
    broker: str | None
    topology: str
    is_dry_run: bool
    is_imported: bool
    state: str | None
    error: str
    counts: dict[str, int]
    topologies: list[str]
    days: list[date]
    unknown: list[str]
    problems: list[dict[str, Any]]


class Annotation(Schema):
    """`id` is null of Delayboard's own changes, replays and outages; `broker` of all brokers."""

    id: int | None
    at: str
    until_at: str | None
    kind: str
    text: str
    version: str
    author: str
    broker: str | None
    topology: str | None


class NewAnnotation(Body):
    """`text` or `version` is needed. Times are as on the pages; `at` is now by default.

    Without `topology` it concerns the broker, without `broker` all brokers.
    """

    text: str = ""
    version: str = ""
    kind: str = "deploy"
    at: str = ""
    until: str = ""
    broker: str = ""
    topology: str = ""


class OpenProblem(Schema):
    """A row of Now. `severity` is error or warning; `broker` is null for Delayboard itself."""

    severity: str
    kind: str
    sentence: str
    key: str
    broker: str | None
    since_at: datetime | None
    acknowledged_by: str | None
    acknowledged_until: datetime | None


class ProblemAcknowledgement(Body):
    """`key` is that of the list; `hours` snooze it, "" acknowledges it until it ends."""

    key: str
    hours: Literal["", "1", "8", "24", "168"] = ""
    withdraw: bool = False


class Task(Schema):
    key: str
    name: str
    host: str
    broker: str | None
    beat_at: datetime | None
    is_late: bool
    error: str


class Alert(Schema):
    title: str
    receiver: str
    state: str
    created_at: datetime
    ended_at: datetime | None
    error: str


class WebhookRequest(Body):
    """`brokers` are their slugs, null for all."""

    name: str
    url: str
    events: list[str]
    brokers: list[str] | None = None


class Webhook(Schema):
    """`failed` counts deliveries that were refused or not answered, and not later accepted."""

    webhook: int
    name: str
    events: list[str]
    brokers: list[str] | None
    is_enabled: bool
    failed: int
    created_at: datetime


class WebhookMade(Webhook):
    """`secret` verifies the signatures. Delayboard does not show it again."""

    secret: str


class Delivery(Schema):
    """`status` is that of the last answer, null without one."""

    delivery: int
    event: str
    payload: dict[str, Any]
    state: str
    attempts: int
    next_at: datetime | None
    status: int | None
    error: str
    created_at: datetime
    ended_at: datetime | None


class Token(Schema):
    """`brokers` are slugs, null for all that its owner may use."""

    name: str
    role: str
    brokers: list[str] | None
    expires_at: datetime


class AuditEntry(Schema):
    at: datetime
    username: str
    action: str
    broker: str
    what: str
    outcome: str
    details: dict[str, Any]


class Done(Schema):
    """`sentence` is what the page shows."""

    sentence: str


Adopted.model_rebuild()
Topology.model_rebuild()

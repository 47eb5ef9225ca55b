"""The cause of a dead letter's death, which decides its group; pure.

Placeholders for the parts of a text that differ from message to message; pure.

`put_placeholders` is applied to the routing key and the exception message that a group is made
of, so that `order.created.<uuid>` is one group. The rules, in their order, are RULES. What
operators hold apart stays:

- a number inside a word: `v2`, `eu1`, `sha256`, `log4j`. From five digits on it is an id.
- the code behind “HTTP”, “status”, “code”, “error”, “errno” or “SQLSTATE”: a 404 has another
  cause than a 500. So do an HRESULT (0x8…), a code such as `ORA-00001`, and `eu-west-1`.
- a port below 32768 of an address: 5432 and 6379 are two services. Higher ones belong to clients.
- words: names of queues, hosts, tables and constraints.

Numbers with a unit (`30000ms`, `retry.5s`) become placeholders: most are measured values.

Each rule takes at least one digit or @ away and adds none, so repeating them ends. The text is
cut first, and every quantifier that may go back is bounded, so no text is slow.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache

from analytics.events import clean
from topology.clients.conventions import Convention
from topology.clients.describe import REPUBLISHED, Description, describe_message
from topology.clients.forms import name_of_type
from topology.deaths import History
from topology.message import Message

LONGEST = 255
# Characters of a text that are read: a trace can have megabytes.
READ_CHARACTERS = 500
FIRST_CLIENT_PORT = 32_768
_DIGIT_OR_AT = re.compile(r"[0-9@]")
# Conditions of a pattern: no letter or digit before it, none behind it.
_BEFORE, _AFTER = r"(?<![0-9A-Za-z])", r"(?![0-9A-Za-z])"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:\ ?[AP]M)?"
_ZONE = r"(?:\ ?(?:Z|UTC|GMT|[+-][0-9]{2}:?[0-9]{2}))?"
_YEAR, _OF_YEAR, _OF_MONTH = (
    r"(?:19|20)[0-9]{2}",
    r"(?:0[1-9]|1[0-2])",
    r"(?:0[1-9]|[12][0-9]|3[01])",
)
# Kubernetes' alphabet for generated names (k8s.io/apimachinery, util/rand).
_POD = r"[bcdfghjklmnpqrstvwxz2456789]"
_UNIT = r"(?:[mun]?s|µs|secs?|seconds?|mins?|minutes?|[mhdx]|[kKMGT]?i?B|[kMG]b|bytes|px)"
_LOCAL, _HOST = r"[0-9A-Za-z_%+-]{1,64}", r"[0-9A-Za-z-]{1,63}"
# Words before a number that is a code, or the number of a region or a version.
_CODE_BEFORE = re.compile(
    r"(?:(?<![a-z])(?:http(?:/[0-9.]{1,3})?|status(?:[ _-]?code)?|code|sqlstate|err(?:or|no)?"
    r"|does not indicate success)[ :=#.\[(\"'/-]{1,3}"
    r"|(?<![a-z])(?:ora|tns|pls|v|eu|us|ap)[_-]|(?:north|south|east|west|central)[_-])\Z",
    re.IGNORECASE,
)
_CODE_AFTER = re.compile(
    r"[ :)-]{1,3}(?:Bad Request|Unauthorized|Forbidden|Not Found|Method Not Allowed|Conflict|Gone"
    r"|Request Time|Precondition Failed|Payload Too|Unprocessable|Too Many|Internal Server"
    r"|Bad Gateway|Service Unavailable|Gateway Time)",
    re.IGNORECASE,
)
LONGEST_CODE, HTTP_DIGITS = 5, 3


@dataclass(frozen=True)
class Failure:
    """The first failure of a message: the queue, the reason, and the exchange and key of its
    publish.

    `exception`, `message_type` and `exception_message` are what its client library wrote.
    All are texts that a database can store, at most 255 characters, "" when unknown.
    `routing_key` and `exception_message` have placeholders for ids (`placeholders.RULES`).
    `parked_from` is the queue of the dead letter where nothing records in which queue it failed,
    else "": an exchange and a key, or an expiry in a delay, can be those of two applications.
    """

    died_in: str = ""
    reason: str = ""
    exchange: str = ""
    routing_key: str = ""
    exception: str = ""
    message_type: str = ""
    exception_message: str = ""
    parked_from: str = ""

    @property
    def fingerprint(self) -> str:
        """32 hex digits, the same for the same failure."""
        sentence = "\x00".join(astuple(self))
        return hashlib.sha256(sentence.encode()).hexdigest()[:32]


# Failures that are kept: many messages die of the same, and a known one is found faster than made.
_failure = lru_cache(maxsize=256)(Failure)


def failure_of(
    message: Message, history: History, queue: str, own: Sequence[Convention] = ()
) -> Failure:
    """The failure of the first death that was no expiry, else what its consumer wrote when it
    published the message again (the reason is REPUBLISHED), else of the first expiry.

    The message is in `queue`; `own` are the client conventions of its broker.
    """
    read = describe_message(message, own) or Description("")
    death = history.first_failure
    is_republished = death is None and read.is_of_failure
    parked_from = "" if death is not None or (is_republished and read.queue) else fit_column(queue)
    causes = (
        fit_column(read.exception_type or ""),
        # Headers come before the property `type`, which everybody uses differently.
        fit_column(read.message_type or name_of_type(message.properties.type or "")),
        put_placeholders(clean(read.exception_message or "")),
        parked_from,
    )
    if is_republished:
        place = (fit_column(read.queue or ""), REPUBLISHED, fit_column(read.exchange or ""))
        return _failure(*place, put_placeholders(fit_column(read.routing_key or "")), *causes)
    death = death or next(iter(history.deaths), None)
    if death is None:
        return _failure("", "", "", "", *causes)
    place = (fit_column(death.queue), fit_column(death.reason), fit_column(death.exchange))
    return _failure(*place, put_placeholders(fit_column(death.routing_key)), *causes)


def fit_column(text: str) -> str:
    """A broker's text as a column holds it."""
    cleaned = clean(text)
    return cleaned if len(cleaned) <= LONGEST else cleaned[:LONGEST]


@dataclass(frozen=True)
class Rule:
    """What `pattern` finds is replaced by what `put` returns of it."""

    name: str
    pattern: re.Pattern[str]
    put: Callable[[re.Match[str]], str]


def _rule(name: str, pattern: str, put: str | Callable[[re.Match[str]], str] = "") -> Rule:
    text = put or f"<{name}>"
    return Rule(name, re.compile(pattern), (lambda found: text) if isinstance(text, str) else text)


def _address(found: re.Match[str]) -> str:
    port = found["port"]
    if port is None:
        return "<ip>"
    return f"<ip>:{port if int(port) < FIRST_CLIENT_PORT else '<number>'}"


def _number(found: re.Match[str]) -> str:
    number, text = found[0], found.string
    is_code = len(number) <= LONGEST_CODE and (
        _CODE_BEFORE.search(text[max(0, found.start() - 40) : found.start()])
        or (len(number) == HTTP_DIGITS and _CODE_AFTER.match(text, found.end()))
    )
    return number if is_code else "<number>"


RULES: tuple[Rule, ...] = (
    _rule("uuid", _BEFORE + r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}" + _AFTER),
    # In a sentence all of it; in a key, where a dot parts words, what is next to the @.
    _rule(
        "email", rf"(?<=[\s\"'<(=:,;\[]){_LOCAL}(?:\.{_LOCAL}){{0,8}}@{_HOST}(?:\.{_HOST}){{1,8}}"
    ),
    _rule("email", rf"{_LOCAL}@{_HOST}\.{_HOST}"),
    # ISO 8601 with its parts, also with dots or slashes; compact; 22.11.2026 and 11/22/2026.
    _rule(
        "date",
        rf"{_BEFORE}{_YEAR}([-/._]){_OF_YEAR}(?:\1{_OF_MONTH}(?:[T_\ ]{_CLOCK}{_ZONE})?)?{_AFTER}",
    ),
    _rule("date", rf"{_BEFORE}{_YEAR}{_OF_YEAR}{_OF_MONTH}(?:[T_-]?[0-9]{{4,6}}Z?)?{_AFTER}"),
    _rule(
        "date",
        rf"{_BEFORE}[0-9]{{1,2}}([./-])[0-9]{{1,2}}\1{_YEAR}(?:,?\ {_CLOCK}{_ZONE})?{_AFTER}",
    ),
    # As HTTP and e-mail write it, and as Java and Go do.
    _rule("date", rf"{_BEFORE}[0-9]{{1,2}}[\ -]{_MONTH}[\ -]{_YEAR}(?:\ {_CLOCK}{_ZONE})?{_AFTER}"),
    _rule(
        "date",
        rf"{_BEFORE}{_MONTH}\ {{1,2}}[0-9]{{1,2}}(?:,?\ {_YEAR})?"
        rf"(?:\ {_CLOCK}{_ZONE}(?:\ {_YEAR})?)?{_AFTER}",
    ),
    _rule("time", rf"{_BEFORE}(?<![:.]){_CLOCK}{_ZONE}{_AFTER}(?![:.][0-9])"),
    _rule(
        "ip",
        r"(?<![0-9A-Za-z.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
        r"(?::(?P<port>[0-9]{1,5}))?(?!\.?[0-9A-Za-z])",
        _address,
    ),
    _rule(
        "ip",
        r"(?<![\w:])(?=[A-Fa-f:]{0,38}[0-9])(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){7}"
        r"|(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6})?::"
        r"(?:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,4}){0,6})?)(?![\w:])",
    ),
    # The pods of a Kubernetes deployment: a hash of its template, five characters of their own.
    _rule("id", rf"(?<=[0-9a-z]-)(?=[a-z-]{{0,15}}[0-9]){_POD}{{8,10}}-{_POD}{{5}}{_AFTER}"),
    _rule("hex", rf"{_BEFORE}0x(?!8[0-9A-Fa-f]{{7}}{_AFTER})[0-9A-Fa-f]{{1,64}}{_AFTER}"),
    # Java's Object.toString().
    _rule("hex", rf"(?<=@)(?=[a-f]{{0,7}}[0-9])[0-9a-f]{{4,8}}{_AFTER}"),
    _rule(
        "hex",
        rf"{_BEFORE}(?=[A-Fa-f]{{0,128}}[0-9])(?=[0-9]{{0,128}}[A-Fa-f])"
        rf"[0-9A-Fa-f]{{8,128}}{_AFTER}",
    ),
    # ULID, KSUID, xid, tokens: long, of a-z and digits; shorter ones where they take turns.
    _rule(
        "id",
        rf"{_BEFORE}(?=[A-Za-z]{{0,64}}[0-9][A-Za-z]{{0,64}}[0-9])(?=[0-9]{{0,64}}[A-Za-z])"
        rf"[0-9A-Za-z]{{20,64}}{_AFTER}",
    ),
    _rule(
        "id",
        rf"{_BEFORE}(?=[A-Za-z]{{0,19}}[0-9]{{1,19}}[A-Za-z]{{1,19}}[0-9]{{1,19}}[A-Za-z]{{1,19}}"
        rf"[0-9])[0-9A-Za-z]{{12,19}}{_AFTER}",
    ),
    _rule("number", rf"(?<=[A-Za-z])(?<!0x)[0-9]{{5,64}}{_AFTER}"),
    # Dotted and grouped ones are one: 1,234.50; 3.10.8; 0.0.1.0.1 of delay levels.
    _rule(
        "number",
        rf"{_BEFORE}(?<!<ip>:)(?<!<ip>\]:)(?:(?<![\w.)>\]])[+-])?"
        rf"[0-9]{{1,64}}(?:[.,][0-9]{{1,64}}){{0,64}}(?={_UNIT}?{_AFTER})",
        _number,
    ),
)


@lru_cache(maxsize=4096)
def put_placeholders(text: str) -> str:
    """Returns the text with placeholders, at most 255 characters; the same again if repeated."""
    text = text[:READ_CHARACTERS]
    while True:
        replaced = _replace_once(text)[:LONGEST]
        if replaced == text:
            return replaced
        text = replaced


def _replace_once(text: str) -> str:
    for rule in RULES:
        if not _DIGIT_OR_AT.search(text):
            break
        text = rule.pattern.sub(rule.put, text)
    return text

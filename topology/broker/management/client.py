"""RabbitMQ's management API: every path part quoted, every call and answer within limits."""

from __future__ import annotations

import math
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import requests
import urllib3

from topology.broker import health
from topology.broker.address import Address, SignIn
from topology.broker.errors import Conflict, NotFound, Unreachable, Unsupported
from topology.broker.failures import explain_management, was_never_sent
from topology.broker.management.answers import (
    Answer,
    BoundedAdapter,
    Limits,
    explain_answer,
    no_api,
    no_vhost,
    read_answer,
)
from topology.broker.management.schema import read_object, read_objects
from topology.broker.management.vhost_update import make_tracing_update
from topology.broker.tokens import get_token
from topology.definitions import Binding, BrokerObject, Exchange, Queue
from topology.snapshot import version_numbers

# The form warns the user who disables verification.
urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
CONNECT_SECONDS = 1.5
REQUEST_SECONDS = 2.7
# Seconds for calls that no person waits for, such as a worker's at a broker with many queues.
PATIENCE_SECONDS = 15.0
# Least time left, in seconds, with which another node is called.
LEAST_SECONDS = 0.1


class Management:
    """A session with the management API of one broker, for one vhost and one thread.

    Each call takes at most `seconds`, from connecting to the last byte of the answer, and all
    calls together at most `in_all`: somebody may be waiting for a page. `heard` is when the last
    answer came, in monotonic seconds, None before the first. `node` is the node of the last call:
    the next one, with its time left, is called when none can be connected to or it lost its API; a
    node that takes a request and falls silent is only called last from then on.
    """

    def __init__(
        self, address: Address, *, seconds: float = REQUEST_SECONDS, in_all: float = math.inf
    ) -> None:
        self.heard: float | None = None
        # Called before each change of the broker; what it raises prevents the change.
        self.before_change: Callable[[], None] = lambda: None
        self.node = address.management_nodes[0]
        self._address = address
        self._seconds = seconds
        self._until = time.monotonic() + in_all
        self._limits = Limits()
        self._session = requests.Session()
        self._session.trust_env = False
        # In UTF-8: requests itself would write latin-1 and fail on anything else.
        account = b64encode(f"{address.username}:{address.password}".encode()).decode()
        self._session.headers["Authorization"] = f"Basic {account}"
        self._session.headers["Accept-Encoding"] = "gzip"
        self._session.verify = address.verify_tls
        urls = [node.management_url for node in address.management_nodes]
        has_tls = any(url.startswith("https") for url in urls)
        context = address.ssl_context() if has_tls else None
        for url in urls:
            adapter = BoundedAdapter(self._limits, url, context, address.server_name)
            self._session.mount(f"{url}/", adapter)

    def __enter__(self) -> Management:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    @contextmanager
    def patience(self, seconds: float) -> Iterator[None]:
        """Let each call in this block wait so long for its answer."""
        before, self._seconds = self._seconds, seconds
        try:
            yield
        finally:
            self._seconds = before

    def version(self) -> tuple[int, ...]:
        """Return the broker's version, such as (4, 0, 5). Raises BrokerError."""
        return version_numbers(str(self.overview().get("rabbitmq_version", "")))

    def overview(self) -> dict[str, Any]:
        """Raises Unreachable where the port is that of another plugin, which answers with 404."""
        try:
            return read_object(self._call("GET", path("overview")))
        except NotFound as error:
            raise no_api(self.node) from error

    def nodes(self) -> list[dict[str, Any]]:
        """Names and states of the cluster's nodes. Raises Refused without the tag “monitoring”."""
        return read_objects(self._call("GET", path("nodes") + "?columns=name,running,partitions"))

    def exchanges(self) -> list[dict[str, Any]]:
        return self._all("exchanges")

    def queues(self) -> list[dict[str, Any]]:
        return self._all("queues")

    def count_queues(self) -> int:
        page = read_object(self._of_vhost("queues", "page=1&page_size=1&disable_stats=true"))
        number = page.get("total_count")
        return number if isinstance(number, int) else len(read_objects(page.get("items")))

    def queue_totals(self) -> list[dict[str, Any]]:
        """Every queue with its numbers of messages, and without what costs the broker more."""
        return read_objects(self._of_vhost("queues", "disable_stats=true&enable_queue_totals=true"))

    def consumers(self) -> list[dict[str, Any]]:
        return self._all("consumers")

    def exchange(self, name: str) -> dict[str, Any]:
        """Raises NotFound when there is no such exchange."""
        return read_object(self._call("GET", path("exchanges", self._address.vhost, name)))

    def queue(self, name: str) -> dict[str, Any]:
        """Raises NotFound when there is no such queue."""
        return read_object(self._call("GET", path("queues", self._address.vhost, name)))

    def bindings(self) -> list[dict[str, Any]]:
        return self._all("bindings")

    def bindings_from(self, exchange: str) -> list[dict[str, Any]]:
        return self._bindings("exchanges", exchange, "source")

    def bindings_to_exchange(self, exchange: str) -> list[dict[str, Any]]:
        return self._bindings("exchanges", exchange, "destination")

    def bindings_to_queue(self, queue: str) -> list[dict[str, Any]]:
        return self._bindings("queues", queue)

    def _bindings(self, kind: str, name: str, *side: str) -> list[dict[str, Any]]:
        where = path(kind, self._address.vhost, name, "bindings", *side)
        return read_objects(self._call("GET", where))

    def is_tracing(self) -> bool:
        """Whether the firehose is on, according to the node that answers (3.10.8 to 4.3.6).

        Raises Refused for an account without the tag “administrator”.
        """
        return self._vhost().get("tracing") is True

    def trace(self, *, on: bool) -> bool:
        """Switch the firehose on the node that answers; returns whether it changed.

        The request repeats description, tags and default queue type (see vhost_update). The PUT
        would create a missing vhost, so the vhost is read first.
        """
        vhost = self._vhost()
        if vhost.get("tracing") is on:
            return False
        self._call("PUT", path("vhosts", self._address.vhost), make_tracing_update(vhost, on=on))
        return True

    def policies(self) -> list[dict[str, Any]]:
        """Read the policies of the virtual host. Raises Refused for an account that may only
        manage.
        """
        return self._all("policies")

    def operator_policies(self) -> list[dict[str, Any]]:
        """Read the operator policies of the virtual host. Raises Refused for an account that may
        only manage.
        """
        return self._all("operator-policies")

    def alarms(self) -> list[str]:
        """The alarms in force as "disk on rabbit@host"; empty when there are none."""
        answer = self._call_nodes("GET", path("health", "checks", "alarms"), also=503)
        if answer.status != 503:
            return []
        reported = read_object(answer.json()).get("alarms")
        alarms = reported if isinstance(reported, list) else []
        named = [f"{a.get('resource')} on {a.get('node')}" for a in alarms if isinstance(a, dict)]
        return named or ["an alarm without a name"]

    def declare_exchange(self, exchange: Exchange) -> None:
        body = {**vars(exchange), "arguments": dict(exchange.arguments)}
        self._call("PUT", path("exchanges", self._address.vhost, body.pop("name")), body)

    def declare_queue(self, queue: Queue) -> None:
        body = {**vars(queue), "arguments": dict(queue.arguments)}
        self._call("PUT", path("queues", self._address.vhost, body.pop("name")), body)

    def bind(self, binding: Binding) -> None:
        body = {"routing_key": binding.routing_key, "arguments": dict(binding.arguments)}
        self._call("POST", self._binding_path(binding), body)

    def declare(self, objects: Iterable[BrokerObject]) -> None:
        """Declare the objects in the order of `Definitions`, in which everything can be declared.

        Raises BrokerError; what was declared before stays.
        """
        for obj in objects:
            match obj:
                case Exchange():
                    self.declare_exchange(obj)
                case Queue():
                    self.declare_queue(obj)
                case Binding():
                    self.bind(obj)

    def set_policy(
        self, name: str, pattern: str, definition: Mapping[str, Any], priority: int = 0
    ) -> None:
        """Set a policy for queues. The account needs the tag policymaker."""
        body = {"pattern": pattern, "definition": dict(definition), "priority": priority}
        where = path("policies", self._address.vhost, name)
        self._call("PUT", where, {**body, "apply-to": "queues"})

    def unbind(self, binding: Binding) -> None:
        """Remove the binding; a missing binding is not an error."""
        whole = self._binding_path(binding)
        for found in read_objects(self._call("GET", whole)):
            same_key = found.get("routing_key") == binding.routing_key
            if same_key and (found.get("arguments") or {}) == dict(binding.arguments):
                self._delete(f"{whole}/{quote(str(found.get('properties_key')), safe='')}")

    def delete_queue(self, name: str, *, only_if_empty: bool, only_if_unused: bool = False) -> None:
        """Raises Conflict when it holds messages and may only go empty, or has consumers and may
        only go unused (classic queues)."""
        conditions = {"if-empty=true": only_if_empty, "if-unused=true": only_if_unused}
        stated = "&".join(text for text, is_stated in conditions.items() if is_stated)
        condition = f"?{stated}" if stated else ""
        try:
            self._delete(path("queues", self._address.vhost, name) + condition)
        except Conflict as error:
            raise Conflict(f"Delayboard did not delete the queue “{name}”. {error}") from error

    def delete_exchange(self, name: str) -> None:
        self._delete(path("exchanges", self._address.vhost, name))

    def _vhost(self) -> dict[str, Any]:
        try:
            return read_object(self._call("GET", path("vhosts", self._address.vhost)))
        except NotFound as error:
            raise no_vhost(self.node) from error

    def _all(self, kind: str) -> list[dict[str, Any]]:
        return read_objects(self._of_vhost(kind))

    def _of_vhost(self, kind: str, query: str = "") -> Any:
        where = path(kind, self._address.vhost)
        try:
            return self._call("GET", f"{where}?{query}" if query else where)
        except NotFound as error:
            # From 4.3 on RabbitMQ answers so too for a virtual host that the user may not access.
            raise no_vhost(self.node) from error

    def _delete(self, where: str) -> None:
        try:
            self._call("DELETE", where)
        except NotFound:
            return

    def _binding_path(self, binding: Binding) -> str:
        kind = "q" if binding.destination_is_queue else "e"
        vhost = self._address.vhost
        return path("bindings", vhost, "e", binding.source, kind, binding.destination)

    def _call(self, method: str, where: str, body: Mapping[str, Any] | None = None) -> Any:
        if method != "GET":
            self._address.before_change()
            self.before_change()
        return self._call_nodes(method, where, body).json()

    def _call_nodes(
        self,
        method: str,
        where: str,
        body: Mapping[str, Any] | None = None,
        also: int | None = None,
    ) -> Answer:
        """The answer of the first node that gives one below 300, or with the status `also`.

        A change is sent to another node only where the first one never got it.
        """
        self._limits.begin(min(self._seconds, self._until - time.monotonic()))
        if self._address.sign_in is SignIn.TOKEN:
            self._session.headers["Authorization"] = f"Bearer {get_token(self._address).text}"
        nodes = health.order_nodes(self._address.management_nodes, "management")
        failures: list[tuple[str, Unreachable]] = []
        for node in nodes:
            self.node = node
            is_hurried = len(failures) < len(nodes) - 1
            try:
                answer = self._send(method, where, body, is_hurried=is_hurried)
                if method == "GET" and answer.status == 500:
                    # RabbitMQ reads the queue twice for one request. If the queue expires in
                    # between, the second request answers 404 (seen on 4.0.5 and 4.3.6 with
                    # x-expires).
                    answer = self._send(method, where, is_hurried=is_hurried)
                if answer.status != also:
                    self._check(answer)
            except Unreachable as error:
                health.record_failure(node.management_url, error)
                failures.append((node.management_url, error))
                may_have_arrived = method != "GET" and not was_never_sent(error)
                if may_have_arrived or self._limits.seconds < LEAST_SECONDS:
                    raise health.explain_all(failures, "management") from error
            else:
                health.record_answer(node.management_url)
                return answer
        raise health.explain_all(failures, "management") from failures[-1][1]

    def _send(
        self, method: str, where: str, body: Mapping[str, Any] | None = None, *, is_hurried: bool
    ) -> Answer:
        url = self.node.management_url
        seconds = self._limits.seconds
        connect = health.HURRIED_CONNECT_SECONDS if is_hurried else CONNECT_SECONDS
        timeout: Any = urllib3.Timeout(connect=min(connect, seconds), total=seconds)
        try:
            response = self._session.request(
                method, url + where, json=body, timeout=timeout, allow_redirects=False, stream=True
            )
            answer = read_answer(response, url)
        except (
            requests.exceptions.RequestException,
            urllib3.exceptions.HTTPError,
            ValueError,
        ) as error:
            # A host name that none can have is a ValueError of the libraries below requests.
            raise explain_management(error, self.node) from error
        self.heard = time.monotonic()
        return answer

    def _check(self, answer: Answer) -> None:
        if answer.status == 404 and "json" not in answer.content_type:
            raise no_api(self.node)
        if answer.status >= 300:
            raise explain_answer(answer.status, answer.reason, self.node)


def path(*parts: str) -> str:
    """A path under /api, every part quoted: the vhost "/" becomes %2F.

    Raises Unsupported for "." and "..", which every HTTP client and server resolves, however
    they are quoted: another object would be meant.
    """
    for part in parts:
        if part in (".", ".."):
            raise Unsupported(f"The management API cannot address an object named “{part}”.")
    return "/api/" + "/".join(quote(part, safe="") for part in parts)


class Shovels(Management):
    def __enter__(self) -> Shovels:
        return self

    def read_status(self) -> list[dict[str, Any]]:
        """Raises NotFound where the plugin is disabled: then this path does not exist."""
        return read_objects(self._call("GET", path("shovels", self._address.vhost)))

    def create(self, name: str, queue: str, target: str, *, prefetch: int) -> None:
        """Move what is in `queue` now, each acknowledged after its confirm, then delete itself.

        A URI without a host has no password (tag policymaker).
        """
        uri = f"amqp:///{quote(self._address.vhost, safe='')}"
        value = {
            "src-protocol": "amqp091",
            "src-uri": uri,
            "src-queue": queue,
            "src-prefetch-count": prefetch,
            "src-delete-after": "queue-length",
            "dest-protocol": "amqp091",
            "dest-uri": uri,
            "dest-queue": target,
            "dest-add-forward-headers": False,
            "ack-mode": "on-confirm",
        }
        self._call("PUT", self._parameter(name), {"value": value})

    def delete(self, name: str) -> None:
        self._delete(self._parameter(name))

    def _parameter(self, name: str) -> str:
        return path("parameters", "shovel", self._address.vhost, name)

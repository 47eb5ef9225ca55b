"""Three RabbitMQ nodes that form a cluster, each of which can die, stop, pause or be cut off."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self
from urllib.error import HTTPError

from delayboard.demo.node import PrivateNode
from delayboard.demo.place import Place
from delayboard.demo.ports import Holder, Ports, choose_ports
from tests.brokers import Vhost, call_api, root_of
from tests.builders import eventually
from tests.faults.alarms import control
from tests.rooted import RootedPlace

NAMES = ("one", "two", "three")
# So long a quorum queue that dead-letters at least once waits for an answer until it publishes
# again (by default three minutes): 3.10 never answers some while a node is paused.
DLX_MILLISECONDS = 20_000


class Member(PrivateNode):
    """A node that joins its cluster when it starts for the first time.

    It dies by `kill`, stops in good order by `stop`, is back after `start`, and pauses in
    `frozen` (tests/faults/freezing.py). `cluster.cut_off` makes a partition.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        super().__init__(cluster.folder / name, name, 1000, cluster.place_in(name))
        self._cluster = cluster

    def _prepare(self) -> Ports:
        for name in ("password", ".erlang.cookie"):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(self._cluster.secret)
                (self.folder / name).chmod(0o400)
        # All register at the cluster's port mapper; the one that this node starts finds it there.
        self._ports = replace(super()._prepare(), epmd=self._cluster.epmd_port)
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.write(self._cluster.settings)
        tick = f"{{kernel, [{{net_ticktime, {self._cluster.tick_seconds}}}]}}"
        dead_lettering = (
            f"{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {DLX_MILLISECONDS}}}]}}"
        )
        (self.folder / "advanced.config").write_text(f"[{tick}, {dead_lettering}].\n")
        return self._ports


class Cluster:
    """Three nodes of one generation in `folder`, named as in NAMES.

    `tick_seconds`: so long a node is silent until the others take it for dead (net_ticktime, by
    default a minute). With `pauses_minority` the smaller side of a partition stops serving.
    """

    def __init__(
        self, folder: Path, generation: str, *, tick_seconds: int = 8, pauses_minority: bool = False
    ) -> None:
        self.folder = folder.resolve()
        self.secret = secrets.token_hex(20)
        self.tick_seconds = tick_seconds
        # Of 4.3 the first node would wait for every other that is named here.
        self.settings = (
            "cluster_formation.peer_discovery_backend = classic_config\n"
            f"cluster_formation.classic_config.nodes.1 = {NAMES[0]}@localhost\n"
        )
        if pauses_minority:
            self.settings += "cluster_partition_handling = pause_minority\n"
        self._root = root_of(generation)
        self._holder = Holder()
        self.epmd_port = choose_ports({}, self.folder, self._holder.take).epmd
        self._epmd: subprocess.Popen[bytes] | None = None
        self._nodes = {name: Member(self, name) for name in NAMES}

    def __enter__(self) -> Self:
        place = self.place_in("epmd")
        place.folder.mkdir(parents=True)
        command = place.command("epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1")
        self._epmd = subprocess.Popen(command, env={"PATH": place.path})
        try:
            self.heal()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.kill()
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait()

    def __getitem__(self, name: str) -> Member:
        return self._nodes[name]

    def place_in(self, name: str) -> Place:
        """Where the programs of a node of this generation come from, with its own folder."""
        folder = self.folder / name
        return Place(folder) if self._root is None else RootedPlace(folder, self._root)

    def heal(self) -> None:
        """Start the nodes that do not run, and wait until all see each other.

        One that only itself sees stays so before 4.3, unless it is started again.
        """
        for node in self._nodes.values():
            node.start()
        views = [
            eventually(partial(self.running, name), f"the node {name} answers") for name in NAMES
        ]
        for name, node in self._nodes.items():
            if sum(name in view for view in views) == 1 and node.version < "4.3":
                node.stop()
                node.start()
        for name in NAMES:
            eventually(partial(self._sees_all, name), f"the cluster is whole at {name}")

    def _sees_all(self, name: str) -> bool:
        return self.running(name) == set(NAMES)

    def running(self, seen_by: str) -> set[str]:
        """The names of the nodes that run, as this one sees it; none when it does not answer, as
        while it waits for one that is silent."""
        try:
            nodes = call_api(self[seen_by], "GET", "nodes")
        except HTTPError as error:
            error.close()
            return set()
        except OSError:
            return set()
        return {one["name"].partition("@")[0] for one in nodes if one["running"]}

    def vhost_at(self, name: str) -> Vhost:
        """The default vhost at the addresses of this node; it ends with the cluster."""
        node = self[name]
        return Vhost(node.amqp_url, node.management_url, "/", node.username, node.password)

    @contextmanager
    def cut_off(self, name: str) -> Iterator[None]:
        """A partition: this node and the others refuse each other's connections."""
        self._for_others(name, "erlang:set_cookie(N, wrong), erlang:disconnect_node(N)")
        try:
            yield
        finally:
            cookie = f"'{self.secret}'"
            self._for_others(name, f"erlang:set_cookie(N, {cookie}), net_kernel:connect_node(N)")

    def _for_others(self, name: str, action: str) -> None:
        others = ", ".join(f"'{other}@localhost'" for other in NAMES if other != name)
        control(self[name], "eval", f"[begin {action} end || N <- [{others}]].")

"""Examples of the rules in `topology.findings.rules.waiting`."""

from __future__ import annotations

from tests.topology.findings.examples.example import (
    Example,
    Examples,
    binding,
    exchange,
    policy,
    queue,
)

RETENTION_MS = 86_400_000


def _cycle(rule: str, **arguments: int) -> Example:
    """A retry loop whose waiting queue has these arguments."""
    work, wait = f"{rule}-work", f"{rule}-wait"
    return Example(
        queues=(
            queue(work, dlx="", key=wait),
            queue(wait, ttl=60_000, dlx="", key=work, **arguments),
        )
    )


def _leased_example(rule: str, kind: str, **expires: int) -> Example:
    work = f"{rule}-work"
    wait = queue(f"{rule}-wait", type=kind, ttl=60_000, dlx="", key=work, **expires)
    return Example(queues=(wait, queue(work)))


EXAMPLES = {
    "F03": Examples(
        failing=Example(queues=(queue("f03-wait", ttl=60_000), queue("f03-work"))),
        passing=Example(
            queues=(queue("f03-wait", ttl=60_000, dlx="", key="f03-work"), queue("f03-work"))
        ),
    ),
    "F05": Examples(
        failing=_leased_example("f05", "classic", expires=60_000),
        passing=_leased_example("f05", "classic", expires=120_000),
    ),
    "F06": Examples(
        failing=_leased_example("f06", "quorum", expires=120_000),
        passing=_leased_example("f06", "quorum"),
    ),
    "F07": Examples(
        failing=Example(
            queues=(queue("f07-work", dlx="", key="f07-dead"), queue("f07-dead", ttl=60_000))
        ),
        passing=Example(queues=(queue("f07-work", dlx="", key="f07-dead"), queue("f07-dead"))),
    ),
    "F19": Examples(
        failing=_cycle("f19", max_length=1000),
        passing=_cycle("f19"),
    ),
    "F20": Examples(
        failing=_cycle("f20", priorities=5),
        passing=_cycle("f20"),
    ),
    "F32": Examples(
        failing=Example(
            queues=(
                queue("f32-work", dlx="", key="f32-wait"),
                queue("f32-wait", dlx="", key="f32-work"),
            )
        ),
        passing=_cycle("f32"),
    ),
    "F21": Examples(
        failing=Example(
            queues=(queue("f21-wait", ttl=60_000, dlx="", key="f21-work"), queue("f21-work")),
            policies=(policy("f21", "^f21-wait", message_ttl=1000),),
        ),
        passing=Example(
            queues=(queue("f21-wait", ttl=60_000, dlx="", key="f21-work"), queue("f21-work")),
            policies=(policy("f21", "^f21-wait", message_ttl=600_000),),
        ),
    ),
    "F29": Examples(
        failing=Example(
            queues=(queue("f29-work", dlx="f29-dead"), queue("f29-failed", ttl=7 * RETENTION_MS)),
            exchanges=(exchange("f29-dead", "fanout"),),
            bindings=(binding("f29-dead", "f29-failed"),),
        ),
        passing=Example(
            queues=(queue("f29-work", dlx="f29-dead"), queue("f29-failed")),
            exchanges=(exchange("f29-dead", "fanout"),),
            bindings=(binding("f29-dead", "f29-failed"),),
        ),
    ),
}

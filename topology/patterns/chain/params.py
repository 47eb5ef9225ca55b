"""A claim on a chain of others: its delay queues, and the objects as they were when adopted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from topology.definitions import (
    Arguments,
    Binding,
    BrokerObject,
    Definitions,
    Exchange,
    Queue,
)
from topology.patterns.pattern import Field, ParamsError
from topology.patterns.texts import Format, names_format, text_functions
from topology.structure.chain import Chain
from topology.structure.find_chains import make_chain

FIELDS: tuple[Field, ...] = ()


@dataclass(frozen=True)
class Params:
    """`declared` is what was declared, `in_force` the same with policies folded in, both as they
    were when the chain was adopted; `queues` are the delay queues."""

    name: str
    queues: tuple[str, ...]
    declared: Definitions
    in_force: Definitions


def claim(chain: Chain, declared: Definitions) -> Params:
    """The parameters of a chain that was found in a vhost where this is declared."""
    there = declared.only(obj.identity for obj in chain.definitions)
    return Params(chain.name, chain.queues, there, chain.definitions)


@lru_cache(maxsize=256)
def chain_of(params: Params) -> Chain:
    return make_chain(params.name, params.queues, params.in_force)


def definitions(params: Params) -> Definitions:
    return params.declared


def _write(found: Definitions) -> str:
    return json.dumps([_as_list(obj) for obj in found], ensure_ascii=False)


def _as_list(obj: BrokerObject) -> list[Any]:
    arguments = dict(obj.arguments)
    match obj:
        case Exchange():
            flags = [obj.durable, obj.auto_delete, obj.internal]
            return ["exchange", obj.name, obj.type, *flags, arguments]
        case Queue():
            return ["queue", obj.name, obj.durable, obj.auto_delete, arguments]
    ends = [obj.source, obj.destination, obj.routing_key, obj.destination_is_queue]
    return ["binding", *ends, arguments]


_KINDS = {"exchange": Exchange, "queue": Queue, "binding": Binding}


def _read(text: str) -> Definitions:
    try:
        rows = json.loads(text)
        objects = [
            _KINDS[kind](*values, arguments=Arguments(arguments))
            for kind, *values, arguments in rows
        ]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ParamsError({"": "The stored objects of this topology cannot be read."}) from error
    return Definitions.of(objects)


_definitions = Format(_read, _write)
parse, store = text_functions(
    Params, queues=names_format("queues"), declared=_definitions, in_force=_definitions
)

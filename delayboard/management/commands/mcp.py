"""Serves the operations of the API to an agent: the Model Context Protocol on stdin and stdout."""

from __future__ import annotations

import asyncio
from typing import Any

from django.core.management.base import CommandParser

from delayboard.mcp_server import MISSING, list_tools, make_protocol
from topology.management.command import BoardCommand
from topology.management.exit_codes import BadInput
from topology.management.server import add_server, open_server


class Command(BoardCommand):
    help = (
        "Serve the operations of a Delayboard to an agent (Model Context Protocol, stdio). It "
        "offers those that only read, unless --allow-changes is given. The token decides what is "
        "allowed. Needs the extra mcp."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_server(parser)
        parser.add_argument(
            "--allow-changes", action="store_true", help="offer operations that change something"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        server = open_server(options)
        if server is None:
            raise BadInput("Name the site with --server, and its token with --token-file.")
        changes = options["allow_changes"]
        tools = list_tools(server.get("openapi.json"), lambda how, _: how == "GET" or changes)

        async def call(*request: Any) -> Any:
            return await asyncio.to_thread(server.call, *request)

        try:
            protocol = make_protocol(call, tools)
        except ImportError as error:
            raise BadInput(MISSING) from error
        asyncio.run(_serve(protocol))


async def _serve(protocol: Any) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await protocol.run(reading, writing, protocol.create_initialization_options())

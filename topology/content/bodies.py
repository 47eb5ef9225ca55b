"""The body of a message as a person reads it: JSON, text in its charset, or bytes; pure.

What is packed is unpacked first, up to a size: a body of kilobytes can hold gigabytes of zeros.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from topology.content.json_tree import BRACKETS, Tree, read_json, write_json
from topology.content.text import count_text, make_encodable

SHOWN_BYTES = 16_384
HEX_BYTES = 2048
HEX_WIDTH = 16
UNPACKED_BYTES = 5_000_000
# Most packed pieces that follow each other, and bytes that are unpacked at once.
MOST_PIECES = 1000
FED_BYTES = 16_384
FOLDED_BYTES = 262_144
FOLDED_LINES = 2000
FOLDED_DEPTH = 40

# Part of a content type -> name of this kind of binary body.
NAMED_TYPES = {
    "protobuf": "protobuf",
    "msgpack": "MessagePack",
    "messagepack": "MessagePack",
    "avro": "Avro",
    "cbor": "CBOR",
    "bson": "BSON",
    "thrift": "Thrift",
    "x-python-serialize": "a Python pickle",
    "java-serialized-object": "a serialized Java object",
}
# Charsets that are decoded: Python also has codecs that are not charsets, and slow ones.
_CHARSETS = re.compile(
    r"utf[-_]?(8|16|32)([-_]?[lb]e)?|iso[-_]?8859[-_]\d{1,2}|latin[-_]?1|(us[-_]?)?ascii|"
    r"windows[-_]12\d\d|cp\d{3,4}|koi8[-_][ru]|shift[-_]?jis|euc[-_](jp|kr)|gb(2312|k|18030)|big5",
    re.IGNORECASE,
)
_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass(frozen=True)
class Body:
    """`text` is pretty JSON, plain text, or a hex dump; `is_cut` when there is more of it.

    `size` is that of the bytes as they lie in the queue; `unpacked` that of what they were
    packed from, None when they are not. `named` is what the content type calls bytes that are no
    text. `notes` are sentences on what was done or could not be done.
    """

    form: Literal["empty", "json", "text", "hex"]
    text: str
    size: int
    is_cut: bool
    unpacked: int | None = None
    charset: str = "utf-8"
    named: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BodyLine:
    """One line of a folded document: something opens, closes, or is a value."""

    does: Literal["open", "close", "value"]
    name: str = ""
    kind: str = ""
    text: str = ""
    count: int = 0
    depth: int = 0

    @property
    def brackets(self) -> str:
        return BRACKETS.get(self.kind, "")


@dataclass(frozen=True)
class Unpacked:
    """The bytes that were packed, up to a limit; `how` is "" when nothing was."""

    data: bytes
    how: str = ""
    notes: tuple[str, ...] = ()


def show_body(body: bytes, content_type: str = "", content_encoding: str = "") -> Body:
    """JSON is indented only when all of it is shown, so that nothing is shown as it is not."""
    if not body:
        return Body("empty", "", 0, is_cut=False)
    unpacked = unpack(body, content_encoding)
    data, notes = unpacked.data, unpacked.notes
    size = len(data) if unpacked.how else None
    charset = charset_of(content_type, content_encoding)
    plain = content_type.partition(";")[0].lower()
    named = next((name for piece, name in NAMED_TYPES.items() if piece in plain), "")
    text = None if named else _decode(data, charset)
    if text is None and not named and charset != "utf-8":
        note = f"The message declares the charset {charset}, but the body is not {charset}."
        notes = (*notes, note)
    if text is None:
        dump, is_cut = hex_dump(data[:HEX_BYTES]), len(data) > HEX_BYTES
        return Body("hex", dump, len(body), is_cut, size, charset, named, notes)
    if len(data) <= SHOWN_BYTES and (pretty := _pretty(text)) is not None:
        return Body("json", make_encodable(pretty), len(body), False, size, charset, "", notes)
    is_cut = len(text) > SHOWN_BYTES
    return Body(
        "text", make_encodable(text[:SHOWN_BYTES]), len(body), is_cut, size, charset, "", notes
    )


def unpack(body: bytes, content_encoding: str = "", most: int = UNPACKED_BYTES) -> Unpacked:
    """Decompress gzip or deflate, at most `most` bytes.

    The compression is known from the content encoding or from gzip's first bytes.
    """
    encoding = content_encoding.strip().lower()
    if body.startswith(_GZIP):
        return _inflate(body, "gzip", 31, most)
    if encoding in ("gzip", "x-gzip"):
        return Unpacked(body, notes=("The message declares gzip, but the body is not gzip.",))
    if encoding == "deflate":
        found = _inflate(body, "deflate", 15, most)
        return found if found.how else _inflate(body, "deflate", -15, most)
    if body.startswith(_ZSTD) or encoding in ("zstd", "br", "compress"):
        name = "zstd" if body.startswith(_ZSTD) else encoding
        return Unpacked(body, notes=(f"Delayboard does not decompress {name}.",))
    return Unpacked(body)


def _inflate(body: bytes, how: str, wbits: int, most: int) -> Unpacked:
    """Packed pieces that follow each other are one, as gzip writes them."""
    pieces: list[bytes] = []
    size = place = 0
    notes: tuple[str, ...] = ()
    while place < len(body) and size < most:
        if len(pieces) == MOST_PIECES:
            shown = count_text(MOST_PIECES)
            notes = (f"Delayboard decompressed only the first {shown} compressed pieces.",)
            break
        try:
            piece, place, is_whole = _piece(body, place, wbits, most - size)
        except zlib.error:
            if not pieces:
                why = "because the body is damaged"
                note = f"Delayboard cannot decompress the body with {how} {why}."
                return Unpacked(body, notes=(note,))
            notes = (f"Delayboard cannot decompress the data after the first {size} bytes.",)
            break
        pieces.append(piece)
        size += len(piece)
        if not is_whole:
            part = f"Delayboard decompressed only the first {count_text(most)} bytes."
            notes = ("The compressed data is incomplete." if size < most else part,)
            break
    return Unpacked(b"".join(pieces), how, notes)


def _piece(body: bytes, place: int, wbits: int, room: int) -> tuple[bytes, int, bool]:
    """Decompress at most `room` bytes from `place` on; also returns the end position, and whether
    it is the end of a part. Raises zlib.error.

    Input is fed in pieces: zlib copies everything behind the end of a part each time.
    """
    engine = zlib.decompressobj(wbits)
    found: list[bytes] = []
    while room > 0 and place < len(body) and not engine.eof:
        fed = body[place : place + FED_BYTES]
        found.append(engine.decompress(fed, room))
        room -= len(found[-1])
        place += len(fed) - len(engine.unused_data) - len(engine.unconsumed_tail)
    return b"".join(found), place, engine.eof


def charset_of(content_type: str, content_encoding: str = "") -> str:
    """The charset of the content type, or the encoding, where kombu puts the charset."""
    charset = content_encoding.strip()
    for parameter in reversed(content_type.split(";")[1:]):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"')
    return charset.lower() if _CHARSETS.fullmatch(charset) else "utf-8"


def _decode(data: bytes, charset: str) -> str | None:
    """The text, None when it is none or has signs that no text has."""
    try:
        text = data.decode(charset)
    except (UnicodeError, LookupError):
        return None
    return None if _CONTROLS.search(text) else text


def fold(tree: Tree) -> tuple[BodyLine, ...]:
    """A document as lines that fold; a value nested too deep is one line.

    Empty when there would be too many lines.
    """
    lines = tuple(islice(_lines(tree, "", 0), FOLDED_LINES + 1))
    return lines if len(lines) <= FOLDED_LINES else ()


def folded(data: bytes) -> tuple[BodyLine, ...]:
    """The lines of a body that is a JSON object or list; none for any other, or a long one."""
    tree = read_json(data) if len(data) <= FOLDED_BYTES else None
    return () if tree is None else fold(tree)


def _lines(tree: Tree, name: str, depth: int) -> Iterator[BodyLine]:
    name = make_encodable(name)
    if not tree.parts or depth == FOLDED_DEPTH:
        try:
            text = make_encodable(tree.text if tree.kind == "text" else write_json(tree))
        except RecursionError:
            text = "…"
        yield BodyLine("value", name, tree.kind, text, len(tree.parts), depth)
        return
    yield BodyLine("open", name, tree.kind, "", len(tree.parts), depth)
    for number, part in enumerate(tree.parts):
        yield from _lines(part, str(number) if part.name is None else part.name, depth + 1)
    yield BodyLine("close", name, tree.kind, "", len(tree.parts), depth)


def hex_dump(data: bytes) -> str:
    """Lines of offset, 16 bytes in hex, and what of them is printable ASCII."""
    lines = []
    for offset in range(0, len(data), HEX_WIDTH):
        piece = data[offset : offset + HEX_WIDTH]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{offset:08x}  {piece.hex(' '):<{HEX_WIDTH * 3 - 1}}  {printable}")
    return "\n".join(lines)


def _pretty(text: str) -> str | None:
    """Indented JSON; None when it is none, or when reading it would change a number or a key."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        read = json.loads(text, object_pairs_hook=_read_unique)
        pretty = json.dumps(read, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    compact = json.dumps(read, ensure_ascii=False, separators=(",", ":"))
    is_exact = "".join(compact.split()) == "".join(text.split())
    return pretty if is_exact else None


def _read_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a duplicate name")
    return read

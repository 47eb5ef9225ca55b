"""Names as a broker holds them: ordinary ones, and those that break a page."""

from __future__ import annotations

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a/b c?d=e&f#g",
    '"quoted" & ‘curly’',
    "طابور-الطلبات-المؤجلة",
    "\u202eright-to-left override",
    "漢字の列の名前",
    "emoji 🐇🐇🐇",
    "no_break_" * 28,
    "x" * 255,
)


def long_name(stem: str, longest: int = 255) -> str:
    """As many bytes as AMQP allows, without a place where a browser would break it."""
    return (stem + "_" + "abcdefghij" * 26)[:longest]


def crowd(count: int) -> list[str]:
    """So many different names: all the hostile ones, every third very long."""
    plain = [
        long_name(f"queue_{n:03}") if n % 3 == 0 else f"team-{n % 7}.service-{n:03}.work"
        for n in range(count - len(HOSTILE))
    ]
    return [*HOSTILE, *plain]

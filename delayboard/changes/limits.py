"""How long before and after a due time messages are intercepted."""

from __future__ import annotations

from datetime import timedelta

# Time before the first due time at which the interception begins: a worker looks every second.
LEAD = timedelta(seconds=10)
# What is due sooner cannot be changed any more.
SHORTEST_NOTICE = timedelta(seconds=4)
# It continues for a change that is due within this time; with the lead alone it would end at once.
HORIZON = LEAD + timedelta(seconds=20)
# Time after its due time when a message that did not come is abandoned, once nothing is waiting.
GRACE = timedelta(seconds=30)
# A copy that is published later could follow its message.
MARGIN = timedelta(seconds=1)
# Time for which a message that was taken out is known, should it come once more.
REMEMBERED = timedelta(hours=1)

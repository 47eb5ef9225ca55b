"""How long before and after a due time messages are intercepted."""

from __future__ import annotations

from datetime import timedelta

# The interception begins so long before the first due time: a worker looks every second.
LEAD = timedelta(seconds=10)
# What is due sooner cannot be changed any more.
SHORTEST_NOTICE = timedelta(seconds=4)
# It goes on to the next message that is due so soon; more than the lead, or it would end at once.
HORIZON = LEAD + timedelta(seconds=20)
# What did not come so long after its due time is given up, once nothing waits to be forwarded.
GRACE = timedelta(seconds=30)
# A copy that is published later could follow its message.
MARGIN = timedelta(seconds=1)
# So long what was taken out is known, should it come once more.
REMEMBERED = timedelta(hours=1)

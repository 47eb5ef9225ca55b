from __future__ import annotations

from topology.migrations._search_index import SearchIndex

SEARCH_INDEX = SearchIndex("analytics_textindex", "analytics_scheduledtext", "message_id")

"""Putting the sums of sends together: one row a key in the place of several. No sum changes by it."""

from __future__ import annotations

from django.db import connection

# What was added since the last time, and the row that it belongs to. What another one of these has taken meanwhile is
# gone, and what a send adds meanwhile is not seen: each row is counted once, whoever comes first.
_TOGETHER = """
WITH loose AS (
  SELECT DISTINCT span_s, start_at, account_id, target_id, tenant_id, currency FROM jobs_sendsum WHERE loose
), taken AS (
  DELETE FROM jobs_sendsum s USING loose l
  WHERE s.span_s = l.span_s AND s.start_at = l.start_at AND s.tenant_id = l.tenant_id AND s.account_id = l.account_id
    AND s.target_id = l.target_id AND s.currency = l.currency
  RETURNING s.*
)
INSERT INTO jobs_sendsum (span_s, start_at, account_id, target_id, tenant_id, currency, loose, sends, succeeded, refused,
  failed, unknown, charged, possible)
SELECT span_s, start_at, account_id, target_id, tenant_id, currency, false, sum(sends), sum(succeeded), sum(refused),
  sum(failed), sum(unknown), sum(charged), sum(possible)
FROM taken GROUP BY span_s, start_at, account_id, target_id, tenant_id, currency
"""


def put_together() -> None:
    """One statement; nothing where nothing is loose."""
    with connection.cursor() as cursor:
        cursor.execute(_TOGETHER)

"""Earlier failures get their key, slice by slice in the order of the primary key, each a transaction of its own: workers go
on meanwhile, and a fill that was broken off is begun again."""

from uuid import UUID

from django.db import migrations

from jobs import failures

SLICE = 2000
# What can be told of when it was met: the newest of what became of the send; a fetch has left no time but the completion.
_READ = """
SELECT id, failure_class, failure_text, fetch_trouble, unsent_at IS NOT NULL,
  coalesce(CASE WHEN fetch_trouble <> '' THEN completed_at END, greatest(failed_at, refused_at, unsent_at, lost_at), created_at)
FROM jobs_providertask
WHERE id > %s AND failure_key IS NULL AND (failure_class <> '' OR failure_text <> '' OR fetch_trouble <> '')
ORDER BY id LIMIT %s
"""
# Rows in the order in which everyone locks them; what a worker has recorded meanwhile is newer.
_WRITE = """
WITH told AS (SELECT * FROM unnest(%s::uuid[], %s::text[], %s::timestamptz[]) AS v (id, key, at)),
  locked AS (
    SELECT t.id FROM jobs_providertask t JOIN told USING (id) WHERE t.failure_key IS NULL
    ORDER BY t.id FOR NO KEY UPDATE OF t)
UPDATE jobs_providertask t SET failure_key = told.key, failure_at = told.at
FROM told JOIN locked USING (id) WHERE t.id = told.id
"""


def fill(apps, schema_editor):
    after = UUID(int=0)
    with schema_editor.connection.cursor() as cursor:
        while True:
            cursor.execute(_READ, [after, SLICE])
            rows = cursor.fetchall()
            if not rows:
                return
            after = rows[-1][0]
            keys = [
                failures.told(
                    failure_class=name, failure_text=text, fetch_trouble=fetch, unsent=unsent
                )
                for _pk, name, text, fetch, unsent, _at in rows
            ]
            cursor.execute(_WRITE, [[row[0] for row in rows], keys, [row[-1] for row in rows]])


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("jobs", "0012_failure_columns")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]

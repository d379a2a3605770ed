"""What sends come to, by quarters of an hour and by days, kept by a trigger."""

from django.db import migrations, models

# What one send adds; `{k}` is its row. The conditions on money are those of jobs/spending.py. Each difference goes in as a
# new row, so that no two transactions ever write the same one.
_LINE = """
  {k}.created_at, {k}.account_id, {k}.target_id, {k}.tenant_id, {k}.currency,
  ({k}.state NOT IN ('intent', 'unsent'))::int AS sends,
  ({k}.state IN ('completed', 'stored'))::int AS succeeded,
  ({k}.state = 'refused')::int AS refused,
  ({k}.state = 'failed')::int AS failed,
  ({k}.state = 'unknown')::int AS unknown,
  CASE WHEN {k}.charge IN ('charged', 'written_off') THEN coalesce({k}.cost, 0) ELSE 0 END AS charged,
  CASE WHEN ({k}.state = 'intent' OR {k}.charge IN ('possible', 'charged', 'written_off'))
         AND ({k}.cost IS NULL OR {k}.charge NOT IN ('charged', 'written_off'))
       THEN {k}.estimated_cost ELSE 0 END AS possible
"""
_INTO = """
INSERT INTO jobs_sendsum (span_s, start_at, account_id, target_id, tenant_id, currency, loose, sends, succeeded, refused,
  failed, unknown, charged, possible)
SELECT s.span_s, date_bin(make_interval(secs => s.span_s), l.created_at, '2000-01-01 00:00:00+00'),
  l.account_id, l.target_id, l.tenant_id, l.currency, {loose}, {sums}
"""
_SUMS = ", ".join(
    f"sum(l.sign * l.{name})" for name in ("sends", "succeeded", "refused", "failed", "unknown", "charged", "possible")
)  # fmt: skip
_SPANS = "CROSS JOIN (VALUES (900), (86400)) AS s (span_s)"
_BY = "GROUP BY 1, 2, 3, 4, 5, 6"
_NOT_NOTHING = " OR ".join(
    f"sum(l.sign * l.{name}) <> 0" for name in ("sends", "succeeded", "refused", "failed", "unknown", "charged", "possible")
)  # fmt: skip

_KEEP = f"""
CREATE FUNCTION jobs_sum_send() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  {_INTO.format(loose="true", sums=_SUMS)}
  FROM (
    SELECT -1 AS sign, {_LINE.format(k="OLD")} WHERE TG_OP <> 'INSERT'
    UNION ALL
    SELECT 1, {_LINE.format(k="NEW")} WHERE TG_OP <> 'DELETE'
  ) l {_SPANS}
  {_BY} HAVING {_NOT_NOTHING};
  RETURN NULL;
END $$;

CREATE FUNCTION jobs_sum_sends_anew() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE jobs_providertask IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM jobs_sendsum;
  {_INTO.format(loose="false", sums=_SUMS)}
  FROM (SELECT 1 AS sign, {_LINE.format(k="k")} FROM jobs_providertask k) l {_SPANS}
  {_BY} HAVING {_NOT_NOTHING};
END $$;

CREATE TRIGGER send_sum AFTER INSERT OR DELETE ON jobs_providertask FOR EACH ROW EXECUTE FUNCTION jobs_sum_send();
CREATE TRIGGER send_sum_changed AFTER UPDATE ON jobs_providertask FOR EACH ROW
WHEN (
  OLD.state IS DISTINCT FROM NEW.state OR OLD.charge IS DISTINCT FROM NEW.charge OR OLD.cost IS DISTINCT FROM NEW.cost
  OR OLD.estimated_cost <> NEW.estimated_cost OR OLD.created_at <> NEW.created_at OR OLD.currency <> NEW.currency
  OR OLD.account_id <> NEW.account_id OR OLD.target_id <> NEW.target_id OR OLD.tenant_id <> NEW.tenant_id
) EXECUTE FUNCTION jobs_sum_send();

SELECT jobs_sum_sends_anew();
"""  # noqa: S608  written above, nobody's input
_KEEP_NO_MORE = """
DROP TRIGGER send_sum ON jobs_providertask;
DROP TRIGGER send_sum_changed ON jobs_providertask;
DROP FUNCTION jobs_sum_send();
DROP FUNCTION jobs_sum_sends_anew();
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0020_preferences")]

    operations = [
        migrations.CreateModel(
            name="SendSum",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("span_s", models.PositiveIntegerField()),
                ("start_at", models.DateTimeField()),
                ("account_id", models.BigIntegerField()),
                ("target_id", models.BigIntegerField()),
                ("tenant_id", models.BigIntegerField()),
                ("currency", models.CharField(max_length=3)),
                ("loose", models.BooleanField(db_default=True, default=True)),
                ("sends", models.IntegerField()),
                ("succeeded", models.IntegerField()),
                ("refused", models.IntegerField()),
                ("failed", models.IntegerField()),
                ("unknown", models.IntegerField()),
                ("charged", models.DecimalField(decimal_places=10, max_digits=30)),
                ("possible", models.DecimalField(decimal_places=10, max_digits=30)),
            ],
            options={
                "default_permissions": (),
                "indexes": [
                    models.Index(fields=["span_s", "start_at", "tenant_id"], name="send_sum_of"),
                    models.Index(
                        condition=models.Q(("loose", True)),
                        fields=["start_at"],
                        name="send_sum_loose",
                    ),
                ],
            },
        ),
        migrations.RunSQL(_KEEP, _KEEP_NO_MORE),
    ]

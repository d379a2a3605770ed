"""Batches: drafts, events, pause and completion; the rule that a paused batch holds its jobs; the index of its progress."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

# A pause moves `not_before` of the pending jobs a thousand years ahead (jobs/models/batch.py), so that the claim needs no
# join. A job that comes back to the queue, from wherever, must wait too; and a batch that was complete is so no more.
#
# The share lock on the batch closes the race with a pause (jobs/lifecycle/batches.py) and with the look for ends: either
# they wait for this transaction and then see its job, or this one waits for them and reads what they wrote. Transactions
# that only bring jobs back do not wait for each other. Re-opening writes, so it takes the stronger lock at once: two
# readers who both want to write would stand in each other's way.
_RULE = """
CREATE FUNCTION jobs_job_back_in_batch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  paused timestamptz;
  completed timestamptz;
BEGIN
  IF OLD.state IN ('pending', 'active') THEN
    SELECT paused_at INTO paused FROM jobs_batch WHERE id = NEW.batch_id FOR SHARE;
  ELSE
    SELECT paused_at, completed_at INTO paused, completed FROM jobs_batch WHERE id = NEW.batch_id FOR NO KEY UPDATE;
    IF completed IS NOT NULL THEN
      UPDATE jobs_batch SET completed_at = NULL WHERE id = NEW.batch_id;
    END IF;
  END IF;
  IF paused IS NOT NULL AND NEW.state = 'pending' AND NEW.not_before < '2900-01-01' THEN
    NEW.not_before := NEW.not_before + interval '365243 days';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER job_back_in_batch BEFORE UPDATE OF state, not_before ON jobs_job FOR EACH ROW
WHEN (
  NEW.batch_id IS NOT NULL AND NEW.state IN ('pending', 'active') AND (
    OLD.state NOT IN ('pending', 'active')
    OR (NEW.state = 'pending' AND NEW.not_before < '2900-01-01'
        AND (OLD.state <> 'pending' OR NEW.not_before <> OLD.not_before))
  )
) EXECUTE FUNCTION jobs_job_back_in_batch();
"""
_NO_RULE = """
DROP TRIGGER job_back_in_batch ON jobs_job;
DROP FUNCTION jobs_job_back_in_batch();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0006_tenants"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="batch",
            options={
                "permissions": [
                    ("pause_batch", "Can pause and resume a batch"),
                    ("cancel_batch", "Can cancel the rest of a batch"),
                    ("retry_batch", "Can retry the failed jobs of a batch"),
                    ("retarget_batch", "Can change the target of the rest of a batch"),
                ],
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
            },
        ),
        migrations.AlterField(
            model_name="batch",
            name="tenant",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="batches",
                to="jobs.tenant",
                verbose_name="tenant",
            ),
        ),
        migrations.AlterField(
            model_name="batch",
            name="created_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
                verbose_name="created by",
            ),
        ),
        migrations.AddField(
            model_name="batch",
            name="paused_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="paused"),
        ),
        migrations.AddField(
            model_name="batch",
            name="completed_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="completed"),
        ),
        migrations.AddField(
            model_name="batch",
            name="completions",
            field=models.PositiveIntegerField(default=0, verbose_name="completions"),
        ),
        migrations.AddIndex(
            model_name="batch",
            index=models.Index(
                fields=["id"],
                name="batch_open",
                condition=models.Q(("completed_at__isnull", True)),
            ),
        ),
        migrations.CreateModel(
            name="BatchEvent",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="at")),
                ("kind", models.CharField(max_length=40, verbose_name="what")),
                ("number", models.PositiveIntegerField(blank=True, null=True)),
                ("data", models.JSONField(blank=True, default=dict)),
                (
                    "actor",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "batch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="events",
                        to="jobs.batch",
                    ),
                ),
            ],
            options={
                "verbose_name": "batch event",
                "verbose_name_plural": "batch events",
                "constraints": [
                    models.UniqueConstraint(fields=("batch", "number"), name="batch_completed_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchDraft",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("token", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("label", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField()),
                ("rows_read", models.PositiveIntegerField(default=0)),
                ("rows", models.JSONField(default=list)),
                ("refused", models.JSONField(default=list)),
                ("notes", models.JSONField(default=list)),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "draft of a batch",
                "verbose_name_plural": "drafts of batches",
                "default_permissions": (),
                "indexes": [models.Index(fields=["created_at"], name="batch_draft_age")],
            },
        ),
        migrations.RunSQL(_RULE, _NO_RULE),
        # The counts of a batch, its rate and its newest results come from this index alone. In SQL, as jobs/models/job.py
        # says nothing about batches but the key.
        migrations.RunSQL(
            "CREATE INDEX job_of_batch ON jobs_job (batch_id, state, finished_at) WHERE batch_id IS NOT NULL",
            "DROP INDEX job_of_batch",
        ),
    ]

"""Callbacks: each tenant's address, the outbox, and the rule that an end leaves a row in it.

Triggers, because many verbs end a job, one by one and in bulk, and an outbox that one of them forgets is none. What they
write belongs to the transaction of the change. No clock is read here: where the row does not tell when, it is left open.
"""

import uuid

import django.contrib.postgres.functions
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

_RULE = """
CREATE FUNCTION jobs_callback_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO jobs_callback (tenant_id, job_id, kind, url, reason, result_id, at, not_before)
  VALUES (NEW.tenant_id, NEW.id, 'job.' || NEW.state, NEW.callback_url, NEW.reason, NEW.delivered_id, NEW.finished_at,
    NEW.finished_at);
  RETURN NULL;
END $$;

CREATE TRIGGER callback_of_job AFTER UPDATE OF state, delivered_id ON jobs_job FOR EACH ROW
WHEN (
  NEW.callback_url <> '' AND NEW.state IN ('succeeded', 'failed', 'cancelled', 'manual')
  AND (NEW.state <> OLD.state OR NEW.delivered_id IS DISTINCT FROM OLD.delivered_id)
) EXECUTE FUNCTION jobs_callback_of_job();

CREATE FUNCTION jobs_callback_of_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO jobs_callback (tenant_id, batch_id, kind, url, at, not_before)
  VALUES (NEW.tenant_id, NEW.id, 'batch.completed', NEW.callback_url, NEW.completed_at, NEW.completed_at);
  RETURN NULL;
END $$;

CREATE TRIGGER callback_of_batch AFTER UPDATE OF completions ON jobs_batch FOR EACH ROW
WHEN (NEW.callback_url <> '' AND NEW.completions > OLD.completions) EXECUTE FUNCTION jobs_callback_of_batch();
"""
_NO_RULE = """
DROP TRIGGER callback_of_batch ON jobs_batch;
DROP FUNCTION jobs_callback_of_batch();
DROP TRIGGER callback_of_job ON jobs_job;
DROP FUNCTION jobs_callback_of_job();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0018_api"),
    ]

    operations = [
        migrations.CreateModel(
            name="Endpoint",
            fields=[
                (
                    "tenant",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="endpoint",
                        serialize=False,
                        to="jobs.tenant",
                        verbose_name="tenant",
                    ),
                ),
                (
                    "url",
                    models.CharField(
                        blank=True,
                        help_text="Hears of every job that names no address of its own. Empty: nobody does.",
                        max_length=500,
                        verbose_name="address",
                    ),
                ),
                (
                    "generation",
                    models.PositiveIntegerField(
                        default=1,
                        validators=[django.core.validators.MinValueValidator(1)],
                        verbose_name="number of the secret",
                    ),
                ),
                (
                    "rotated_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="secret changed"),
                ),
            ],
            options={
                "verbose_name": "callback address",
                "verbose_name_plural": "callback addresses",
                "default_permissions": (),
                "permissions": [
                    ("rotate_endpoint", "Can change the secret of callbacks"),
                    ("reveal_endpoint", "Can see the secret of callbacks"),
                ],
            },
        ),
        migrations.AddField(
            model_name="batch",
            name="callback_url",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.AddField(
            model_name="job",
            name="callback_url",
            field=models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.CreateModel(
            name="Callback",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "message",
                    models.UUIDField(
                        db_default=django.contrib.postgres.functions.RandomUUID(),
                        default=uuid.uuid4,
                        unique=True,
                        verbose_name="message",
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("job.succeeded", "job succeeded"),
                            ("job.failed", "job failed"),
                            ("job.cancelled", "job cancelled"),
                            ("job.manual", "job needs a person"),
                            ("batch.completed", "batch completed"),
                        ],
                        max_length=20,
                        verbose_name="what",
                    ),
                ),
                ("url", models.CharField(max_length=500, verbose_name="address")),
                (
                    "host",
                    models.GeneratedField(
                        db_persist=True,
                        expression=models.Func(
                            models.F("url"),
                            models.Value("^[a-z]+://[^/?#]+"),
                            function="substring",
                            output_field=models.CharField(max_length=500),
                        ),
                        output_field=models.CharField(max_length=500),
                        verbose_name="receiver",
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True, db_default="", max_length=40, verbose_name="reason"
                    ),
                ),
                ("at", models.DateTimeField(blank=True, null=True, verbose_name="at")),
                (
                    "not_before",
                    models.DateTimeField(blank=True, null=True, verbose_name="next try"),
                ),
                ("since", models.DateTimeField(blank=True, null=True)),
                ("leased_until", models.DateTimeField(blank=True, null=True)),
                (
                    "tries",
                    models.PositiveIntegerField(db_default=0, default=0, verbose_name="tries"),
                ),
                ("failures", models.PositiveIntegerField(db_default=0, default=0)),
                ("tried_at", models.DateTimeField(blank=True, null=True, verbose_name="last try")),
                (
                    "status",
                    models.PositiveSmallIntegerField(blank=True, null=True, verbose_name="answer"),
                ),
                (
                    "trouble",
                    models.CharField(
                        blank=True, db_default="", max_length=300, verbose_name="trouble"
                    ),
                ),
                (
                    "delivered_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="delivered"),
                ),
                (
                    "given_up_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="given up"),
                ),
                (
                    "batch",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="callbacks",
                        to="jobs.batch",
                        verbose_name="batch",
                    ),
                ),
                (
                    "case",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="callbacks",
                        to="jobs.case",
                        verbose_name="case",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="callbacks",
                        to="jobs.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "result",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="jobs.result",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="callbacks",
                        to="jobs.tenant",
                        verbose_name="tenant",
                    ),
                ),
            ],
            options={
                "verbose_name": "callback",
                "verbose_name_plural": "callbacks",
                "permissions": [("replay_callback", "Can have a callback sent again")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("tenant"),
                        models.F("host"),
                        models.OrderBy(models.F("not_before"), nulls_first=True),
                        models.F("id"),
                        condition=models.Q(
                            ("delivered_at__isnull", True), ("given_up_at__isnull", True)
                        ),
                        name="callback_claim",
                    ),
                    models.Index(
                        condition=models.Q(
                            ("delivered_at__isnull", True), ("given_up_at__isnull", True)
                        ),
                        fields=["not_before"],
                        name="callback_due",
                    ),
                    models.Index(
                        condition=models.Q(("leased_until__isnull", False)),
                        fields=["tenant", "host"],
                        name="callback_leased",
                    ),
                    models.Index(
                        models.F("tenant"),
                        models.F("host"),
                        models.OrderBy(models.F("tried_at"), descending=True),
                        condition=models.Q(("tried_at__isnull", False)),
                        name="callback_tried",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("job__isnull", True), ("batch__isnull", True), _connector="XOR"
                        ),
                        name="callback_of_job_or_batch",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("delivered_at__isnull", False),
                            ("given_up_at__isnull", False),
                            _negated=True,
                        ),
                        name="callback_ends_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("leased_until__isnull", True),
                            models.Q(("delivered_at__isnull", True), ("given_up_at__isnull", True)),
                            _connector="OR",
                        ),
                        name="callback_leased_while_it_waits",
                    ),
                ],
            },
        ),
        migrations.RunSQL(_RULE, _NO_RULE),
    ]

"""Bulk actions in the background: a run, its frozen selection in chunks, and what it left out."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.expressions
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0009_decisions"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="BulkRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("token", models.UUIDField(default=uuid.uuid4, unique=True)),
                ("verb", models.CharField(max_length=20, verbose_name="verb")),
                ("data", models.JSONField(blank=True, default=dict)),
                ("chosen", models.TextField(blank=True)),
                ("permission", models.CharField(blank=True, max_length=100)),
                ("created_at", models.DateTimeField(verbose_name="begun")),
                ("total", models.PositiveIntegerField(default=0)),
                ("done", models.PositiveIntegerField(default=0)),
                ("skipped", models.PositiveIntegerField(default=0)),
                ("cursor", models.PositiveIntegerField(default=0)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("open", "under way"),
                            ("done", "done"),
                            ("aborted", "stopped"),
                            ("forbidden", "stopped: no longer permitted"),
                        ],
                        default="open",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("worked_at", models.DateTimeField(blank=True, null=True)),
                ("trouble", models.CharField(blank=True, max_length=300)),
                ("aborted_at", models.DateTimeField(blank=True, null=True)),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                (
                    "aborted_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="by",
                    ),
                ),
            ],
            options={
                "verbose_name": "bulk action",
                "verbose_name_plural": "bulk actions",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="BulkChunk",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                (
                    "ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="chunks",
                        to="jobs.bulkrun",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="BulkSkip",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("reason", models.CharField(max_length=40)),
                ("said", models.TextField(blank=True)),
                (
                    "money",
                    models.DecimalField(blank=True, decimal_places=10, max_digits=20, null=True),
                ),
                ("currency", models.CharField(blank=True, max_length=3)),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="jobs.job",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="skips",
                        to="jobs.bulkrun",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.AddIndex(
            model_name="bulkrun",
            index=models.Index(
                condition=models.Q(("state", "open")), fields=["worked_at", "id"], name="bulk_open"
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state", "open"), ("finished_at__isnull", False), _connector="XOR"
                ),
                name="bulk_ended_or_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("state", "aborted"), ("aborted_at__isnull", True), _connector="XOR"
                ),
                name="bulk_aborted_has_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "total__gte",
                        django.db.models.expressions.CombinedExpression(
                            models.F("done"), "+", models.F("skipped")
                        ),
                    )
                ),
                name="bulk_counts_within_total",
            ),
        ),
        migrations.AddConstraint(
            model_name="bulkchunk",
            constraint=models.UniqueConstraint(fields=("run", "number"), name="bulk_chunk_number"),
        ),
        migrations.AddIndex(
            model_name="bulkskip",
            index=models.Index(fields=["run", "reason", "job"], name="bulk_skip_reason"),
        ),
        migrations.AddConstraint(
            model_name="bulkskip",
            constraint=models.UniqueConstraint(fields=("run", "job"), name="bulk_skip_once"),
        ),
    ]

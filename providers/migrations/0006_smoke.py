"""Proofs of a provider's contract: when, whether they passed, what was found."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F, Q


class Migration(migrations.Migration):
    dependencies = [("providers", "0005_trail")]

    operations = [
        migrations.CreateModel(
            name="SmokeRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(verbose_name="started")),
                ("ended_at", models.DateTimeField(blank=True, null=True, verbose_name="ended")),
                ("real", models.BooleanField(verbose_name="with a real generation")),
                ("day", models.DateField(blank=True, null=True)),
                (
                    "most",
                    models.DecimalField(
                        blank=True,
                        decimal_places=6,
                        max_digits=14,
                        null=True,
                        verbose_name="most it may cost",
                    ),
                ),
                ("job_id", models.BigIntegerField(blank=True, null=True)),
                ("ok", models.BooleanField(blank=True, null=True, verbose_name="passed")),
                ("checks", models.JSONField(blank=True, default=list)),
                ("seen", models.JSONField(blank=True, default=dict)),
                (
                    "cost",
                    models.DecimalField(blank=True, decimal_places=10, max_digits=20, null=True),
                ),
                ("currency", models.CharField(blank=True, max_length=3)),
                ("lease_until", models.DateTimeField(blank=True, null=True)),
                (
                    "account",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="smokes",
                        to="providers.account",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="providers.target",
                    ),
                ),
            ],
            options={
                "verbose_name": "smoke run",
                "verbose_name_plural": "smoke runs",
                "indexes": [
                    models.Index(F("account"), F("at").desc(), name="smoke_of_account"),
                    models.Index(
                        F("at"), condition=Q(ended_at__isnull=True), name="smoke_unfinished"
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("account", "day"), name="smoke_once_a_day")
                ],
            },
        )
    ]

"""What the HTTP API needs: tokens, idempotency keys, and what jobs ask for as a fingerprint."""

import uuid

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0017_choice"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="Which program uses it.", max_length=80, verbose_name="name"
                    ),
                ),
                (
                    "prefix",
                    models.CharField(max_length=24, unique=True, verbose_name="begins with"),
                ),
                ("digest", models.CharField(max_length=64)),
                (
                    "scopes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[
                                ("submit", "create jobs"),
                                ("read", "read jobs, results, states and the budget"),
                                ("cancel", "cancel jobs"),
                            ],
                            max_length=10,
                        ),
                        size=None,
                        verbose_name="scopes",
                    ),
                ),
                (
                    "per_minute",
                    models.PositiveIntegerField(
                        default=600,
                        help_text="As many may also come at once.",
                        validators=[
                            django.core.validators.MinValueValidator(1),
                            django.core.validators.MaxValueValidator(100000),
                        ],
                        verbose_name="requests a minute",
                    ),
                ),
                ("created_at", models.DateTimeField(verbose_name="made")),
                (
                    "expires_at",
                    models.DateTimeField(
                        blank=True, help_text="Empty: never.", null=True, verbose_name="expires"
                    ),
                ),
                ("revoked_at", models.DateTimeField(blank=True, null=True, verbose_name="revoked")),
                (
                    "last_used_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="last used"),
                ),
                ("paced_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "verbose_name": "API token",
                "verbose_name_plural": "API tokens",
                "permissions": [
                    ("rotate_apitoken", "Can replace an API token"),
                    ("revoke_apitoken", "Can revoke an API token"),
                ],
            },
        ),
        migrations.CreateModel(
            name="IdempotencyKey",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=255)),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField()),
                ("kept_until", models.DateTimeField()),
            ],
            options={
                "verbose_name": "idempotency key",
                "verbose_name_plural": "idempotency keys",
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="job",
            name="fingerprint",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                models.F("tenant"),
                models.OrderBy(models.F("id"), descending=True),
                name="job_of_tenant",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("state__in", ["pending", "active"]),
                    models.Q(("fingerprint", ""), _negated=True),
                ),
                fields=["tenant", "fingerprint"],
                name="job_same_live",
            ),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="created_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="replaces",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="successors",
                to="jobs.apitoken",
            ),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="revoked_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="tenant",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="api_tokens",
                to="jobs.tenant",
                verbose_name="tenant",
            ),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="batch",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="jobs.batch",
            ),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="job",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="jobs.job",
            ),
        ),
        migrations.AddField(
            model_name="idempotencykey",
            name="tenant",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="+", to="jobs.tenant"
            ),
        ),
        migrations.AddConstraint(
            model_name="apitoken",
            constraint=models.CheckConstraint(
                condition=models.Q(("digest__regex", "^[0-9a-f]{64}$")), name="api_token_digest"
            ),
        ),
        migrations.AddConstraint(
            model_name="apitoken",
            constraint=models.CheckConstraint(
                condition=models.Q(("per_minute__gte", 1), ("per_minute__lte", 100000)),
                name="api_token_pace_in_bounds",
            ),
        ),
        migrations.AddConstraint(
            model_name="apitoken",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("scopes__contained_by", ["submit", "read", "cancel"]), ("scopes__len__gt", 0)
                ),
                name="api_token_scopes_known",
            ),
        ),
        migrations.AddIndex(
            model_name="idempotencykey",
            index=models.Index(fields=["kept_until"], name="idempotency_over"),
        ),
        migrations.AddConstraint(
            model_name="idempotencykey",
            constraint=models.UniqueConstraint(
                fields=("tenant", "key"), name="idempotency_key_once"
            ),
        ),
    ]

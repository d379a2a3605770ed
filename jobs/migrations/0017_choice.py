"""A tenant's split over targets; what staff think of a result."""

import django.db.models.deletion
import django.db.models.lookups
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0016_webhook"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="result",
            options={
                "permissions": [("rate_result", "Can rate a result")],
                "verbose_name": "result",
                "verbose_name_plural": "results",
            },
        ),
        migrations.AddField(
            model_name="result",
            name="rating",
            field=models.CharField(
                blank=True,
                choices=[("good", "good"), ("usable", "usable"), ("bad", "bad")],
                db_default="",
                default="",
                max_length=6,
                verbose_name="rating",
            ),
        ),
        migrations.AddField(
            model_name="result",
            name="rated_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="result",
            name="rated_by",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            model_name="tenant",
            name="split",
            field=models.JSONField(
                blank=True,
                db_default=models.Value([], models.JSONField()),
                default=list,
                verbose_name="split",
            ),
        ),
        migrations.AddConstraint(
            model_name="result",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("rated_at__isnull", True), ("rating", "")),
                    models.Q(
                        ("rated_at__isnull", False), ("rating__in", ["good", "usable", "bad"])
                    ),
                    _connector="OR",
                ),
                name="result_rating_with_time",
            ),
        ),
        migrations.AddConstraint(
            model_name="tenant",
            constraint=models.CheckConstraint(
                condition=django.db.models.lookups.Exact(
                    models.Func(
                        models.F("split"),
                        models.Value(
                            "$[*] ? (!(@.weight > 0 && @.target > 0) || (@.weight > 0 && @.target > 0) is unknown)"
                        ),
                        function="jsonb_path_exists",
                        output_field=models.BooleanField(),
                    ),
                    False,
                ),
                name="tenant_split_weights",
            ),
        ),
    ]

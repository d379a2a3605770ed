"""What the dashboard looks up: jobs that wait, sends that took long. A lane that is kept out of work."""

from datetime import UTC, datetime

import django.db.models.expressions
import django.db.models.functions.comparison
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_send_sums")]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("not_before__lt", datetime(2900, 1, 1, tzinfo=UTC)),
                    ("state", "pending"),
                ),
                fields=["tenant", "created_at"],
                name="job_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="providertask",
            index=models.Index(
                models.Func(
                    models.F("armed_at"),
                    function="date_bin",
                    output_field=models.DateTimeField(),
                    template="date_bin('1 hour', %(expressions)s, '2000-01-01 00:00:00+00')",
                ),
                django.db.models.expressions.CombinedExpression(
                    django.db.models.functions.comparison.Coalesce("completed_at", "failed_at"),
                    "-",
                    models.F("armed_at"),
                ),
                condition=models.Q(("provider_id__isnull", False)),
                name="task_took",
            ),
        ),
        migrations.AddField(
            model_name="lane",
            name="closed_at",
            field=models.DateTimeField(blank=True, null=True, verbose_name="taken out of work"),
        ),
        migrations.AlterModelOptions(
            name="lane",
            options={
                "permissions": [("drain_lane", "Can drain and restart a lane")],
                "verbose_name": "lane",
                "verbose_name_plural": "lanes",
            },
        ),
    ]

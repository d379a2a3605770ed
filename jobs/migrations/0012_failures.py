"""Error groups: the index that they are counted over, and that a key has its time."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0012_failure_fill")]

    operations = [
        migrations.AddIndex(
            model_name="providertask",
            index=models.Index(
                condition=models.Q(("failure_at__isnull", False)),
                fields=["failure_at"],
                include=("failure_key", "target", "tenant", "job"),
                name="task_failures",
            ),
        ),
        migrations.AddConstraint(
            model_name="providertask",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("failure_key__isnull", True), ("failure_at__isnull", False), _connector="XOR"
                ),
                name="task_failure_with_time",
            ),
        ),
    ]

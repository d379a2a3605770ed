"""Which failures are alike: the key that a send carries, and when its newest failure was met. Both are null at first, so the
table is not written anew."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0011_statement")]

    operations = [
        migrations.AddField(
            model_name="providertask",
            name="failure_key",
            field=models.CharField(blank=True, max_length=40, null=True),
        ),
        migrations.AddField(
            model_name="providertask",
            name="failure_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]

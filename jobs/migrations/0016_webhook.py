"""Whether a send carries a webhook's address."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0015_provider_links")]

    operations = [
        migrations.AddField(
            model_name="providertask",
            name="webhook",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]

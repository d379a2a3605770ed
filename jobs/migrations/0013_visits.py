"""Up to when each person has read the handover."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0012_failures"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Visit",
            fields=[
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("read_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "visit",
                "verbose_name_plural": "visits",
                "default_permissions": (),
                "permissions": [("view_trail", "Can read the trail and the handover")],
            },
        ),
    ]

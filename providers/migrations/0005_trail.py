"""What people did at an account, read over all."""

from django.db import migrations, models
from django.db.models import F, Q

BY_PEOPLE = Q(actor__isnull=False) | Q(
    kind__in=(
        "paused", "resumed", "blocked", "limits_changed", "target_opened", "alerts_silenced", "alerts_unsilenced",
    )
)  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("providers", "0004_alerts_silenced")]

    operations = [
        migrations.AddIndex(
            model_name="providerevent",
            index=models.Index(
                F("at").desc(), F("id").desc(), name="provider_event_by_people", condition=BY_PEOPLE
            ),
        ),
    ]

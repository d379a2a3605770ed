"""An account's troubles within a span of time, for the reports."""

from django.db import migrations, models

EPISODE_KINDS = (
    "opened", "key_rejected", "quota_exhausted", "blocked", "paused", "target_stopped", "closed", "unblocked", "resumed",
    "target_opened",
)  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("providers", "0006_smoke")]

    operations = [
        migrations.AddIndex(
            model_name="providerevent",
            index=models.Index(
                fields=["account", "at"],
                name="provider_event_episodes",
                condition=models.Q(kind__in=EPISODE_KINDS),
            ),
        ),
        migrations.AddIndex(
            model_name="providerevent",
            index=models.Index(
                fields=["account", "at"],
                name="provider_event_throttles",
                condition=models.Q(kind="throttled"),
            ),
        ),
    ]

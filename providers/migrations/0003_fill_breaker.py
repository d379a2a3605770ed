"""Blocks get their kind; a key that was rejected becomes an open breaker whose next try is the old block's end."""

from django.db import migrations
from django.db.models import F
from django.db.models.functions import Coalesce


def fill(apps, schema_editor):
    states = apps.get_model("providers", "ProviderState").objects.using(
        schema_editor.connection.alias
    )
    blocked = states.filter(state__in=["throttled", "quota_exhausted"], block="")
    blocked.update(block=F("state"))
    states.filter(state="down", gate="closed").update(
        gate="open",
        cause="key",
        opened_at=F("since"),
        next_try_at=Coalesce("blocked_until", "since"),
        open_s=60.0,
        blocked_until=None,
    )


class Migration(migrations.Migration):
    dependencies = [("providers", "0002_breaker_and_windows")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
